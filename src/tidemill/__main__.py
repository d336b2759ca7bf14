"""`python -m tidemill`."""

from __future__ import annotations

from tidemill.cli.main import main

main()
