"""What an output must obey, as token masks: programs' phases, schemas, expressions, grammars."""
