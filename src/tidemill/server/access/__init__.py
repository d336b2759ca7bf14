"""Who may call: keys, roles, origins, limits."""
