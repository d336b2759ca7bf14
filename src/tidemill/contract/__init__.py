"""The types that control and compute share; the only place where they meet."""
