"""Plans to arrays, and results back."""
