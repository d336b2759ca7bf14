"""Writes Hugging Face folders."""
