"""What clients send, through everything that reads it: `make fuzz` as well.

The grammar sandbox may die; what it lets pass may not end this process, over a real vocabulary.
"""

from __future__ import annotations

import atexit
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fuzz import edges
from fuzz.mutate import mutate_json
from fuzz.targets import Target
from tidemill.base.errors import bad_request
from tidemill.contract.program import Grammar
from tidemill.generation.caller import ANONYMOUS
from tidemill.generation.prepare import rendered
from tidemill.grammar import schema as schemas
from tidemill.grammar.compiler import Compiler
from tidemill.grammar.sandbox import GrammarSandbox
from tidemill.grammar.vocabulary import Vocabulary
from tidemill.loading import bundled_models, open_model
from tidemill.offline.opened_text import OpenedText
from tidemill.server.access.limits import Limits
from tidemill.server.dialects.body import parse_body
from tidemill.server.dialects.openai.schema import ChatRequest
from tidemill.server.dialects.openai.translate import chat_request
from tidemill.server.errors import Rejection
from tidemill.text.answering import ChatSide, rules_of
from tidemill.text.parsers.engine import OutputParser
from tidemill.text.parsers.formats import FORMATS

STEPS = 24
"""Tokens of a grammar that are followed over the model's vocabulary."""


@cache
def _compiler() -> Compiler:
    files = open_model(bundled_models()["brook"])
    vocabulary = Vocabulary(files.tokenizer, files.spec.vocab_size, files.eos_token_ids)
    sandbox = GrammarSandbox()
    atexit.register(sandbox.close)
    sandbox.set_vocabulary(vocabulary.shape)
    return Compiler(vocabulary, sandbox.attempt)


def _follow(grammar: Grammar, rng: random.Random) -> None:
    """Compile a grammar as an engine does, and follow it along tokens that it allows."""
    compiler = _compiler()
    matcher = compiler.matcher(grammar)
    for _ in range(STEPS):
        if forced := matcher.compute_ff_tokens():
            matcher.consume_tokens(forced[:STEPS])
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if not mask or matcher.is_error() or matcher.is_stopped():
            return
        at = rng.randrange(compiler.vocabulary.size)
        above = mask >> at << at
        chosen = above or mask
        matcher.consume_token((chosen & -chosen).bit_length() - 1)


def _grammar(name: str, kind: str, make: Callable[[random.Random], Any]) -> Target:
    def write(rng: random.Random) -> bytes:
        made = make(rng)
        source = made if isinstance(made, str) else json.dumps(made)
        return json.dumps({"seed": rng.randrange(2**32), "source": source}).encode()

    def read(data: bytes, folder: Path) -> None:
        document = json.loads(data)
        _follow(Grammar(kind, document["source"], "field"), random.Random(document["seed"]))

    return Target(name, 0.14, write, read, bounded=False)


@cache
def _chat() -> tuple[ChatSide, OpenedText]:
    opened = OpenedText.open()
    return ChatSide.of(opened.tokenizer, opened.template, schemas.prepared), opened


def _conversation(rng: random.Random) -> dict[str, Any]:
    tool = {"type": "function", "function": {
        "name": "f", "description": edges.text(rng), "parameters": edges.schema(rng),
        "strict": rng.random() < 0.5}}  # fmt: skip
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    return {
        "messages": [
            {"role": "system", "content": edges.text(rng)},
            {"role": "user", "content": [{"type": "text", "text": edges.text(rng)}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": edges.text(rng)},
            {"role": "user", "content": edges.text(rng)},
        ],
        "tools": [tool],
        "tool_choice": rng.choice(("auto", "required", "none")),
        "seed": rng.choice(edges.INTEGERS),
        "max_tokens": rng.choice(edges.COUNTS),
        "temperature": rng.choice(edges.NUMBERS),
        "stop": [edges.text(rng) for _ in range(rng.randrange(3))],
        "logit_bias": {str(rng.choice(edges.INTEGERS)): rng.choice(edges.NUMBERS)},
        "guided_grammar": rng.choice((None, None, edges.gbnf(rng), edges.run(rng))),
    }


def _bodies() -> Target:
    def make(rng: random.Random) -> bytes:
        body = _conversation(rng)
        for name in rng.sample(sorted(body), rng.randrange(len(body))):
            if name != "messages":
                del body[name]
        if rng.random() < 0.5:
            return mutate_json(body, rng)
        return json.dumps(body).encode()

    def read(data: bytes, folder: Path) -> None:
        chat, opened = _chat()
        try:
            body = parse_body(ChatRequest, data, Limits())
        except Rejection as rejection:
            raise bad_request("body", str(rejection)) from None
        text, output_options = rendered(opened.template, chat, chat_request(body, ANONYMOUS, 0.0))
        opened.tokenizer.encode(text)
        for phase in rules_of(chat, output_options, text, continued=False).program.phases:
            if isinstance(phase, Grammar):
                _follow(phase, random.Random(0))

    return Target("chat bodies", 0.14, make, read, bounded=False)


def _outputs() -> Target:
    """What models write is led by what clients say: every format's reader on hostile text."""
    forms = list(FORMATS.values())

    def make(rng: random.Random) -> bytes:
        form = rng.randrange(len(forms))
        marks = [*forms[form].marks, "[f(", "{", '{"name": "f", "arguments": {', "<f>", "'", '"']
        parts = [rng.choice(marks) if rng.random() < 0.5 else edges.text(rng)
                 for _ in range(rng.randrange(1, 9))]  # fmt: skip
        return json.dumps({"form": form, "text": "".join(parts), "cut": rng.choice((1, 7, 10**9))}
                          ).encode()  # fmt: skip

    def read(data: bytes, folder: Path) -> None:
        document = json.loads(data)
        parser = OutputParser(forms[document["form"]], (), parse_tools=True, parse_reasoning=True)
        text, cut = document["text"][:60_000], document["cut"]
        for at in range(0, len(text), cut):
            parser.push(text[at : at + cut])
        parser.finish()

    return Target("outputs", 0.15, make, read, bounded=False)


def _choices(rng: random.Random) -> list[str]:
    return [edges.text(rng) for _ in range(rng.choice((1, 9, 900)))]


def client_targets() -> list[Target]:
    """Every kind of input; the shares add up to one, about."""
    return [
        _grammar("JSON schemas", "json_schema", edges.schema),
        _grammar("regular expressions", "regex", edges.regex),
        _grammar("Lark grammars", "lark", edges.lark),
        _grammar("GBNF grammars", "gbnf", edges.gbnf),
        _grammar("choices", "choice", _choices),
        _bodies(), _outputs(),
    ]  # fmt: skip
