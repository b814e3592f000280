"""Small services as people write them, for the real servers that the tests start."""
