"""Records: append them, print them, follow them; as a group of readers, too, and how far behind that is."""
