"""Groups of embedded readers."""
