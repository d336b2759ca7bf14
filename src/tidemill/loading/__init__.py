"""Model files to tensors: safetensors, GGUF, the hub."""
