"""The deployment file: what one server serves, validated whole before anything starts."""
