"""The C++ executor's Python side."""
