"""`python -m tidemill`, and the `tidemill` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is being imported is no traceback either."""
    try:
        from tidemill.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
