"""Names of settings. Imports nothing: a server looks for one of them before it is ready."""

from __future__ import annotations

KEYS_REQUIRED = "keys.required"
"""Set by the first key, and never taken back: a team whose last key is revoked is not open."""
