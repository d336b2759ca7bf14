"""Files and batches of OpenAI's API."""
