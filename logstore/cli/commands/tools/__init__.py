"""What helps people: how fast and how dear this store is, a page that shows it, a demonstration, completion."""
