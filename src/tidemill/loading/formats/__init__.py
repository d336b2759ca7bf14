"""File formats: bytes to stored tensors, metadata and vocabularies."""
