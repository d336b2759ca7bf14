"""Known holes in the installed packages, by pip-audit; says so when nothing could be looked up.

Exit codes: 0 none known, 1 there are some, 2 the database did not answer for the base install.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path


def main() -> int:
    """Run pip-audit over this environment."""
    command = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "-f", "json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(ended.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(ended.stderr.strip()[-500:])
        print("nothing was audited: pip-audit did not get as far as a report", file=sys.stderr)
        return 2
    looked_up = {p["name"].lower().replace("_", "-"): p for p in packages if "vulns" in p}
    holes = [(p["name"], p["version"], v) for p in looked_up.values() for v in p["vulns"]]
    for name, version, hole in holes:
        fixed = ", ".join(hole["fix_versions"]) or "no version yet"
        print(f"{name} {version}: {hole['id']}, mended in {fixed}")
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    base = [re.split(r"[^A-Za-z0-9_-]", line)[0] for line in project["dependencies"]]
    missing = [name for name in base if name.lower().replace("_", "-") not in looked_up]
    print(f"{len(looked_up)} of {len(packages)} packages looked up, {len(holes)} known holes")
    if holes:
        return 1
    if missing:
        print(f"not looked up, of the base install: {', '.join(missing)}", file=sys.stderr)
        print("the database could not be reached or does not know them", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
