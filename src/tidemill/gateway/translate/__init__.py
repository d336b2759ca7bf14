"""OpenAI's chat completions as Anthropic's messages and the other way round, streams included."""
