"""Kafka v2 record batches: records, columns, codecs, the numbers of idempotent producers. Imports `format` alone."""
