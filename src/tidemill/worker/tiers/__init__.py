"""KV blocks below the device: where they lie, and the thread that moves them."""
