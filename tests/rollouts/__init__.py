"""Rollouts on simulated traffic: `make rollouts`."""
