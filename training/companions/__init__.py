"""What is trained beside brook: a draft model, Medusa heads, two LoRA adapters, a soft prompt."""
