"""Cohere's API for embeddings (its rerank is `server.dialects.openai.rerank`)."""
