"""Where objects live: memory, a folder, S3. Each maps its foreign errors at its edge; `url` picks one by its URL."""
