"""Constrained output as token masks: output programs, schemas, regular expressions, grammars."""
