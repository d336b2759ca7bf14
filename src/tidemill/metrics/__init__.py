"""Counters and histograms, and their Prometheus rendering."""
