"""A model that writes what a test says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.marked_model import Model, marked_model


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with marked_model() as made:
        yield made
