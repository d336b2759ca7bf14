"""Derives a model's format of calls and thinking from what its chat template renders."""
