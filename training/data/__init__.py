"""The generator: every text brook sees is made here, deterministically from a seed."""
