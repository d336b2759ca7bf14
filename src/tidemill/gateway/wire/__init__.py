"""HTTP to the targets: connections that are kept, answers as they arrive."""
