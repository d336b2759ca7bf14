"""Benchmarks: the same work on Tidemill and, where there is one, on a peer, in one run."""
