"""Writes models: in another type, another container, or calibrated on a text."""
