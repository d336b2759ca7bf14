"""Writing model files: tensor by tensor, resumable, in formats that others read too."""
