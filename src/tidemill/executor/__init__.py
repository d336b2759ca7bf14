"""Where a worker runs: in this process, or another."""
