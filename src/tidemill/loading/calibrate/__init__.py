"""Quantizing with a calibration text: a model's layers run in numpy, one after another, and each
matrix is rounded so that what the layer gives on the text changes least."""
