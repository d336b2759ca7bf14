"""Long lists of token ids are read in slices, and everything else as `json.loads` reads it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.base.errors import TidemillError
from tidemill.server.access.limits import Limits
from tidemill.server.dialects import id_lists
from tidemill.server.dialects.body import parse_body
from tidemill.server.dialects.id_lists import LONG_BYTES, Ids, loads
from tidemill.server.dialects.openai import schema
from tidemill.server.errors import Rejection


def _never(name: str) -> None:
    raise ValueError(f"it has {name}")


LONG = ",".join(str(i) for i in range(3000))


def test_long_lists_are_found_wherever_they_are() -> None:
    text = '{"a": [[%s], [1, 2], [ %s ]], "b": {"c": [%s\n]}, "d": "[%s]", "e": "\\"[%s]\\\\"}'
    document = loads((text % ((LONG,) * 5)).encode(), _never)
    assert document == json.loads(text % ((LONG,) * 5), strict=False)
    first, short, second = document["a"]
    assert type(first) is type(second) is type(document["b"]["c"]) is Ids
    assert type(short) is list


@pytest.mark.parametrize(
    "broken",
    [
        *(LONG + ",", "," + LONG, LONG + ",,1", LONG + " 1", LONG + ",01", LONG + "]", ",", " "),
        LONG + ',"a', LONG + "\n", "9" * 5000, LONG + "," + "1" * 4400,
    ],
    ids=lambda text: f"{len(text)}{text[-6:]!r}",
)  # fmt: skip
def test_what_is_no_list_is_an_error_at_its_place(broken: str) -> None:
    for text in ("[%s]", '{"x": [%s], "y": nul}', '{"x": [[%s], NaN]}'):
        body = (text % broken.ljust(LONG_BYTES)).encode()

        def outcome(read: Any, body: bytes = body) -> object:
            try:
                return read(body)
            except json.JSONDecodeError as error:
                return error.msg, error.pos
            except ValueError as error:
                return str(error)

        want = outcome(lambda body: json.loads(body, parse_constant=_never))
        assert outcome(lambda body: loads(body, _never)) == want


@settings(max_examples=40)
@given(st.data())
def test_it_reads_as_the_parser_does(data: st.DataObject) -> None:
    value = st.recursive(
        st.one_of(
            st.none(),
            st.text('ab"\\[]{},1 '),
            st.integers(-3, 2**70),
            st.just([7] * 20),
            st.floats(),
        ),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text("ab"), inner)),
        max_leaves=12,
    )
    text = json.dumps(data.draw(value), separators=data.draw(st.sampled_from([(",", ":"), None])))
    cut = data.draw(st.integers(0, len(text)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_lists, "LONG_BYTES", data.draw(st.integers(1, 30)))
        patch.setattr(id_lists, "_SLICE_BYTES", data.draw(st.integers(1, 9)))
        for body in (text.encode(), text[:cut].encode(), (text[:cut] + '"' + text[cut:]).encode()):
            outcomes = []
            for read in (
                lambda b: json.loads(b, parse_constant=_never),
                lambda b: loads(b, _never),
            ):
                try:
                    outcomes.append(read(body))
                except ValueError as error:
                    outcomes.append(str(error))
            assert outcomes[0] == outcomes[1]


def _body(prompt: str) -> bytes:
    return b'{"user": "%b", "prompt": %b}' % (b"x" * 20_000, prompt.encode())


@pytest.mark.parametrize("prompt", [f"[{LONG}]", f"[[{LONG}],[1,2]]"])
def test_a_body_with_a_long_prompt(prompt: str) -> None:
    body = _body(prompt)
    found = parse_body(schema.CompletionRequest, body, Limits())
    assert found.prompt == json.loads(prompt)
    for wrong in ('["a",[%s]]', '[[%s],"a"]', "[[%s],[true]]", '{"a":[%s]}'):
        body = _body(wrong % LONG)
        with pytest.raises((Rejection, TidemillError)):
            parse_body(schema.CompletionRequest, body, Limits())
    pair = body.replace(b"xx", b"\\ud83d", 1)
    with pytest.raises(Rejection, match="surrogate"):
        parse_body(schema.CompletionRequest, pair, Limits())


def _longest_hold(work: Callable[[], object]) -> float:
    """The part of a thread's processor time in which no other thread had its turn."""
    began = time.process_time()
    thread, worst = threading.Thread(target=work), 0.0
    thread.start()
    while thread.is_alive():
        before = time.process_time()
        time.sleep(0.001)
        worst = max(worst, time.process_time() - before)
    return worst / (time.process_time() - began)


def test_no_slice_takes_long() -> None:
    body = b'{"prompt":[' + b",".join([b"1234"] * 1_000_000) + b"]}"
    limits = Limits()

    def read() -> None:
        assert len(parse_body(schema.CompletionRequest, body, limits).prompt) == 10**6

    # It is 0.4 in one go, and 0.1 in slices; the machine may be busy.
    assert min(_longest_hold(read) for _ in range(3)) < 0.25
