"""Every parameter in every dialect: it reaches the engine, or a 400 names it; and all of them
together, so that every two of them meet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from helpers import parameter_matrix
from helpers.live_server import fake_context, serving
from helpers.parameter_matrix import (
    COLUMNS,
    PARAMETERS,
    Column,
    as_json,
    known_fields,
    known_in,
    sample,
)
from helpers.scripted_engine import ScriptedEngine

from tidemill.contract.sampling import SamplingParams
from tidemill.server.app import DIALECTS
from tidemill.server.dialects.members import InvalidField, fill

VALUES = {name: sample(name) for name in PARAMETERS}
# Bodies of routes that generate nothing.
OTHERS = (
    *("embed", "rerank", "score", "similarity", "tokenize", "detokenize", "count_tokens"),
    *("input_tokens", "conversations", "apply-template", "repository"),
    *("show", "pull", "copy", "delete", "create", "push", "compact", "batches", "files", "keys"),
    *("lora_adapter", "lora-adapters"),
)


class Server:
    def __init__(self, http: httpx.Client, engine: ScriptedEngine) -> None:
        self.http, self.engine = http, engine

    def send(self, column: Column, asked: Mapping[str, Any]) -> httpx.Response:
        """Ask for parameters by a dialect's names; `asked` has values of `SamplingParams`."""
        needed = {k: v for name in asked for k, v in column.needs.get(name, {}).items()}
        named = {column.names[name]: as_json(value) for name, value in asked.items()}
        self.engine.requests.clear()
        return self.http.post(column.path, json=column.body({**needed, **named}))

    def sampling(self) -> SamplingParams:
        """What the engine was asked for."""
        return self.engine.requests[-1].sampling


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    engine = ScriptedEngine()
    with serving(fake_context(engine)) as url, httpx.Client(base_url=url) as http:
        yield Server(http, engine)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.title)
def test_every_parameter_works_or_is_refused_by_name(server: Server, column: Column) -> None:
    assert set(column.names) <= set(PARAMETERS)
    for name in PARAMETERS:
        if name in column.names:
            answer = server.send(column, {name: VALUES[name]})
            assert answer.status_code == 200, (name, answer.text)
            found = getattr(server.sampling(), name)
            assert found == VALUES[name], name
        else:
            at = column.place + name
            value = as_json(VALUES[name])
            answer = server.http.post(column.path, json=column.body({at: value}))
            if column.accepts(name, value):  # such as the threshold of a sampler that is off
                assert answer.status_code == 200, (name, answer.text)
                continue
            assert answer.status_code == 400 and at in answer.text, (name, answer.text)


def covering(names: list[str]) -> Iterator[set[str]]:
    """Few sets such that of every two names there is one with both, with either, with neither."""
    yield set(names)
    yield set()
    for bit in range(len(names).bit_length()):
        one = {name for index, name in enumerate(names) if index >> bit & 1}
        yield one
        yield set(names) - one


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.title)
def test_every_two_parameters_work_together(server: Server, column: Column) -> None:
    names = list(column.names)
    unset = SamplingParams()
    excluded: set[frozenset[str]] = set()
    for on in covering(names):
        asked = dict.fromkeys(on)
        while (answer := server.send(column, {n: VALUES[n] for n in asked})).status_code != 200:
            # Two that contradict each other: the message names both, and one of them is left out.
            assert answer.status_code == 400, answer.text
            said = [n for n in asked if re.search(rf"\b{column.names[n]}\b", answer.text)]
            assert len(said) >= 2, answer.text
            excluded.add(frozenset(said))
            del asked[said[0]]
        sampling = server.sampling()
        for name in names:
            value = getattr(sampling, name)
            if name in asked:
                assert value == VALUES[name], (name, on)
            elif name == "n" and "best_of" in asked:
                assert value == VALUES["best_of"]  # so many are sampled
            elif getattr(unset, name) is not None:
                assert value == getattr(unset, name) or column.title == "TGI", (name, on)
    assert len(excluded) <= len(names), excluded


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.title)
def test_values_that_change_nothing_are_taken_and_others_name_the_member(column: Column) -> None:
    for path, model in column.bodies.items():
        base = dict(column.base) if not path else {}
        for name, known in known_in(model.known):
            for value in known.values:
                fill(model, {**base, name: value})
            if name in model.__struct_fields__ or known.takes({"zz": [1.5]}):
                continue
            with pytest.raises(InvalidField) as caught:
                fill(model, {**base, name: {"zz": [1.5]}})
            assert caught.value.path == name


def test_what_only_another_dialect_has_is_refused_by_name() -> None:
    every = {name for column in COLUMNS for name, _ in known_fields(column)}
    assert len(every) > 250
    for column in COLUMNS:
        path, model = list(column.bodies.items())[-1]
        base = dict(column.base) if not path else {}
        for name in every - {*model.__struct_fields__, *model.known}:
            with pytest.raises(InvalidField) as caught:
                fill(model, {**base, name: 1})
            assert (caught.value.path, caught.value.code) == (name, "unknown_parameter")


def test_the_page_says_what_is_declared() -> None:
    page = parameter_matrix.PAGE.read_text()
    inside = page.split(parameter_matrix.BEGIN)[1].split(parameter_matrix.END)[0]
    assert inside == parameter_matrix.tables(), "run python tests/helpers/parameter_matrix.py"


def test_every_route_that_generates_is_in_the_matrix() -> None:
    known = {path.replace("tiny", "{model}") for c in COLUMNS for path in (c.path, *c.answered)}
    for dialect in DIALECTS:
        for endpoint in dialect.endpoints:
            path = endpoint.path.replace(":path", "")
            other = any(word in path for word in OTHERS)
            if endpoint.body is not None and endpoint.method == "POST" and not other:
                assert path in known, f"{dialect.name}: {path}"
