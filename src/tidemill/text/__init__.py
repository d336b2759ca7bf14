"""Text to tokens and back: tokenizer, chat template, detokenizer, stop strings."""
