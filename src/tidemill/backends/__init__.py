"""Executors of a DecoderSpec: native (C++) and torch."""
