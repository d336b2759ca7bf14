"""API dialects: request bodies in, answers out; and what they share."""
