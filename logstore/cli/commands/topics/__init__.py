"""Topics as a whole: list, show, create, alter and delete them, and show the watermarks of their partitions."""
