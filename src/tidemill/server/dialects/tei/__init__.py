"""The API of Hugging Face's Text Embeddings Inference (TEI)."""
