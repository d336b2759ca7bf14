"""Errors, ids, time and logging: what every room may use."""
