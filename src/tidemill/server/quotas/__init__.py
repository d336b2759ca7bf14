"""Quotas and budgets: reserved when a request is admitted, settled when it has ended."""
