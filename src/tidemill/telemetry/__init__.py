"""What is known of each request: one record, of which usage, audit and explanations are views."""
