"""OpenAI's Responses and Conversations, with storage and resumable streams."""
