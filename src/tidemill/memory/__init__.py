"""KV blocks: pool, prefix index, leases. Never touches a weight."""
