"""Parses model output into reasoning, tool calls and content: one parser, formats as data."""
