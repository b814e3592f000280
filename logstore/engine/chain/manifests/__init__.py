"""The manifest of a partition: how it is read, and how checkpoints and maintenance replace it, several at once.

May import: the rest of `chain`, nothing of which imports it. Called by `maintenance` and `garbage`.
"""
