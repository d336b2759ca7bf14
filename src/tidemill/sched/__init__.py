"""Which tokens are computed next: queue, policy, scheduler."""
