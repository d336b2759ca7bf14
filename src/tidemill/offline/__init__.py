"""Shared by the offline API and the command line: opened models and streamed outputs."""
