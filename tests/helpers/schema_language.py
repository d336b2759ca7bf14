"""What a schema allows and rejects, as the engine compiles it over brook's vocabulary."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

import jsonschema
import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.program import Grammar
from tidemill.grammar.compiler import Compiler
from tidemill.grammar.schema import prepared
from tidemill.grammar.vocabulary import Vocabulary
from tidemill.loading import bundled_models, open_model


@cache
def compiler() -> Compiler:
    """Over brook's vocabulary."""
    files = open_model(bundled_models()["brook"])
    return Compiler(Vocabulary(files.tokenizer, 3072, files.eos_token_ids))


def allows(schema: Any, text: str) -> bool:
    """A text can be written under a schema, from beginning to end."""
    matcher = compiler().matcher(Grammar("json_schema", json.dumps(schema), "s"))
    ids = compiler().vocabulary(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def allowed(schema: Any, texts: Iterable[str]) -> list[str]:
    """Those of some texts that can be written."""
    return [text for text in texts if allows(schema, text)]


def rejection(schema: Any) -> tuple[str, str]:
    """The param and message with which a schema is rejected before it is compiled."""
    with pytest.raises(TidemillError) as caught:
        prepared(json.dumps(schema), "s")
    error = caught.value
    assert error.kind is ErrorKind.BAD_REQUEST and error.param and len(error.message) < 500
    return error.param, error.message


def check_agreement(schema: Any, instances: Iterable[Any]) -> None:
    """Each instance is allowed where `jsonschema` finds it valid, and only there."""
    judge = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    for instance in instances:
        text = json.dumps(instance, ensure_ascii=False)
        assert allows(schema, text) is judge.is_valid(instance), text
