"""Message batches of Anthropic's API."""
