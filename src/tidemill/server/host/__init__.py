"""The served model and the generations that run on it."""
