"""Adapters from files: PEFT's folders and GGUF's LoRA files, verified against their base model."""
