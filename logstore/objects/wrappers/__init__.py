"""What goes round an object store: retries, counters, foreign errors, slices of objects. None knows what it stores."""
