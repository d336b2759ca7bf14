"""Drafters: what proposes tokens ahead of a sequence's output, for the target model to verify."""
