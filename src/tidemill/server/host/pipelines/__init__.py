"""Pipelines as served names: the parent's side of their processes."""
