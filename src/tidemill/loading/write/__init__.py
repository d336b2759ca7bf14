"""Writes model files tensor by tensor, resumably, in formats that other programs read."""
