"""What a model needs, how fast it will be and what it costs, before it runs (docs/planning.md)."""
