"""A model that writes what a test says, spoken to in Ollama's API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.marked_model import marked_model
from helpers.ollama_api import Ollama


@pytest.fixture(scope="package")
def ollama() -> Iterator[Ollama]:
    """A running server."""
    with marked_model() as model:
        yield Ollama(model)


@pytest.fixture(autouse=True)
def _healthy(ollama: Ollama) -> Iterator[None]:
    yield
    ollama.engine.fail_after = None
