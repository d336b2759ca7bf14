"""Identifiers and seeds."""

from __future__ import annotations

import json

from tidemill.base.ids import new_seed


def test_drawn_seeds_survive_clients_whose_numbers_are_doubles() -> None:
    for _ in range(200):
        seed = new_seed()
        assert 0 <= seed == int(float(json.dumps(seed)))
