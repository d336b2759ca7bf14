"""The API of Hugging Face's Text Generation Inference (TGI)."""
