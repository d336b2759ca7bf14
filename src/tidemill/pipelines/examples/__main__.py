"""Prints the folder of the examples, to copy them from."""

from __future__ import annotations

from pathlib import Path

if __name__ == "__main__":
    print(Path(__file__).parent)
