"""Quantization with a calibration text. A model's layers run in numpy, one after another, and each
matrix is rounded so that the layer's output on the text changes least."""
