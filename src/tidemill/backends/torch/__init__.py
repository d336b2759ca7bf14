"""The same spec in plain torch operations."""
