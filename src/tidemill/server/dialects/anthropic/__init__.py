"""The Anthropic Messages API (https://docs.anthropic.com/en/api/messages)."""
