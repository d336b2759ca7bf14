"""Engines of one deployment on many machines: how many, where, and who sends requests to them."""
