"""Load on one server: `make load`."""
