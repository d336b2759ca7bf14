"""Writes GGUF files."""
