"""The one internal request: every dialect and `LLM` make it, `prepare` turns it into engine
requests, and outputs come back as deltas."""
