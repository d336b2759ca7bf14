"""Batches: many requests at once, answered in capacity that nobody else wants."""
