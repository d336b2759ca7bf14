"""Hostile model files, made by mutation: `make fuzz`."""
