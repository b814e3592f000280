"""What tests of groups share."""
