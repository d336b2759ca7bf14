"""Parsing of what a model writes: reasoning, tool calls, content; one engine, formats as data."""
