"""What keeps a store small and whole: merge, expire, trim, collect garbage; look into objects and check them all."""
