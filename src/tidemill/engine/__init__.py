"""The step loop and its clients."""
