"""Values at the edges of what native code counts with, and grammars made of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

Term = Callable[[], str]

INTEGERS = tuple(
    sign * 2**bits + more
    for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64)
    for sign in (1, -1)
    for more in (-1, 0, 1)
)
NUMBERS = (*INTEGERS, 0, -0.0, 0.1, 1e-7, 5e-324, 1e16, 1e20, -1e30, 1e308, -1e308, 10**40)
COUNTS = (0, 1, 2, 7, 64, 255, 256, 1000, 65535, 65536, 10**5, 2**31 - 1, 2**31, 2**32, 2**63)
LENGTHS = (1, 2, 3, 10, 100, 1000, 20_000)
CHARACTERS = (
    *("a", "Z", " ", "\n", "\t", "\0", "\\", '"', "'", "1", "-", ".", "\u0301", "\u200d", "é"),
    *("漢", "👨‍👩‍👧", "\U0010ffff", "\ufffd", "<", "{", "[", "\u202e", "ﬀ", "\r\n"),
)


def run(rng: random.Random) -> str:
    """A long run of something short."""
    part = "".join(rng.choices(CHARACTERS, k=rng.choice((1, 1, 2, 3))))
    return part * (rng.choice(LENGTHS) // len(part) + 1)


def text(rng: random.Random) -> str:
    """A few characters, or a run, or both."""
    short = "".join(rng.choices(CHARACTERS, k=rng.randrange(8)))
    return short if rng.random() < 0.7 else short + run(rng) + short


def schema(rng: random.Random, depth: int = 0) -> Any:
    """A JSON schema; not always a sound one."""
    deep = depth > 5 or rng.random() < 0.3
    kind = rng.choice(("number", "constant", "string", "other"))
    if not deep:
        kind = rng.choice((kind, "object", "array", "choice", "chain"))
    return _SCHEMAS[kind](rng, depth + 1)


def _number(rng: random.Random, depth: int) -> Any:
    keys = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    found = {key: rng.choice(NUMBERS) for key in rng.sample(keys, rng.randrange(1, 4))}
    return {"type": rng.choice(("integer", "number")), **found}


def _constant(rng: random.Random, depth: int) -> Any:
    values = [rng.choice((rng.choice(NUMBERS), text(rng), None, True, [1], {"a": 2**63}))
              for _ in range(rng.choice((1, 2, 5, 200)))]  # fmt: skip
    return {"enum": values} if rng.random() < 0.5 else {"const": values[0]}


def _string(rng: random.Random, depth: int) -> Any:
    found: dict[str, Any] = {"type": "string"}
    if rng.random() < 0.5:
        found["pattern"] = regex(rng)
    for key in ("minLength", "maxLength"):
        if rng.random() < 0.4:
            found[key] = rng.choice(COUNTS)
    if rng.random() < 0.2:
        found["format"] = rng.choice(("date-time", "email", "uri", "uuid", "time", "hostname"))
    return found


def _object(rng: random.Random, depth: int) -> Any:
    names = [rng.choice(("a", "b", text(rng)[:40], f"k{i}"))
             for i in range(rng.choice((1, 3, 40)))]  # fmt: skip
    found: dict[str, Any] = {
        "type": "object",
        "properties": {name: schema(rng, depth) for name in names[: 3 if depth > 2 else 40]},
        "required": names[: rng.randrange(4)],
    }
    if rng.random() < 0.3:
        found["additionalProperties"] = schema(rng, depth)
    if rng.random() < 0.2:
        found["patternProperties"] = {regex(rng): schema(rng, depth)}
    for key in ("minProperties", "maxProperties"):
        if rng.random() < 0.2:
            found[key] = rng.choice(COUNTS)
    return found


def _array(rng: random.Random, depth: int) -> Any:
    found: dict[str, Any] = {"type": "array", "items": schema(rng, depth)}
    for key in ("minItems", "maxItems"):
        if rng.random() < 0.5:
            found[key] = rng.choice(COUNTS)
    if rng.random() < 0.3:
        found["prefixItems"] = [schema(rng, depth) for _ in range(rng.randrange(1, 4))]
    return found


def _choice(rng: random.Random, depth: int) -> Any:
    key = rng.choice(("anyOf", "allOf", "oneOf"))
    return {key: [schema(rng, depth) for _ in range(rng.choice((1, 2, 3, 9)))]}


def _chain(rng: random.Random, depth: int) -> Any:
    """Nested deeply, or in itself."""
    if rng.random() < 0.4:
        part = {"anyOf": [{"$ref": "#/$defs/a"}, schema(rng, 9)]}
        return {"$defs": {"a": part}, "$ref": rng.choice(("#/$defs/a", "#"))}
    inner = schema(rng, 9)
    for _ in range(rng.choice((3, 50, 58, 70, 200))):
        inner = rng.choice((
            {"type": "array", "items": inner}, {"anyOf": [inner, {"type": "null"}]},
            {"allOf": [inner]}, {"type": "object", "properties": {"a": inner}},
        ))  # fmt: skip
    return inner


def _other(rng: random.Random, depth: int) -> Any:
    return rng.choice(({}, True, {"type": ["string", "null"]}, {"type": "object"}, False))


_SCHEMAS = {
    "number": _number, "constant": _constant, "string": _string, "object": _object,
    "array": _array, "choice": _choice, "chain": _chain, "other": _other,
}  # fmt: skip


def regex(rng: random.Random, depth: int = 0) -> str:
    """A regular expression; not always a sound one."""
    kind = rng.randrange(8 if depth < 5 else 3)
    if kind == 0:
        return rng.choice(("a", "[a-z]", ".", r"\d", r"\w", r"\p{L}", "[^\\n]", "(a|b)", "\\s",
                           "(?i:ab)", "(?=a)", r"\b", r"\1", "[", ")", "$", "^"))  # fmt: skip
    if kind == 1:
        return "".join(rng.choices("abc019_-", k=rng.choice((1, 3, 50, 2000))))
    if kind == 2:
        return rng.choice(("|".join(f"w{i}" for i in range(rng.choice((2, 50, 3000)))), "", "()"))
    if kind == 3:
        count = rng.choice(COUNTS)
        bounds = rng.choice((f"{{{count}}}", f"{{0,{count}}}", f"{{{count},}}"))
        return f"({regex(rng, depth + 1)}){bounds}"
    if kind == 4:
        return f"({regex(rng, depth + 1)}){rng.choice(('*', '+', '?', '*?', '**'))}"
    if kind == 5:
        times = rng.choice((2, 30, 400, 5000))
        return "(" * times + regex(rng, 9) + ")" * times
    return regex(rng, depth + 1) + rng.choice(("", "|", "")) + regex(rng, depth + 1)


def _term(rng: random.Random, sound: Sequence[Term], edge: Sequence[Term]) -> str:
    """Sound for the most part, so that grammars pass and are followed."""
    return rng.choice(edge if rng.random() < 0.08 else sound)()


def lark(rng: random.Random) -> str:
    """A grammar in llguidance's dialect."""
    names = [f"r{i}" for i in range(rng.choice((1, 3, 8)))]
    sound = (
        lambda: rng.choice(names),
        lambda: json.dumps(rng.choice(("a", "bc", " ", "é", '"', "\\", "x" * 300))),
        lambda: rng.choice(("/[a-z]+/", "/[^x]{1,80}/", "/.*?y/", "/(a|b)*c/", "/\\p{L}{2}/")),
        lambda: f'({rng.choice(names)} | "z"){rng.choice("*+?")}',
        lambda: f'("a" {rng.choice(names)}){{{rng.choice((1, 2, 3, 40))}}}',
        lambda: f'%json {{"type": "integer", "maximum": {rng.choice(INTEGERS)}}}',
        lambda: '%json {"type": "object", "properties": {"a": {"type": "string"}}}',
    )
    edge = (
        lambda: json.dumps(text(rng)[:200]), lambda: f"/{regex(rng, 3)}/".replace("\n", " "),
        lambda: f'"b"{{0,{rng.choice(COUNTS)}}}', lambda: f'"b"{{{rng.choice(COUNTS)}}}',
        lambda: f"%json {json.dumps(schema(rng, 3))}",
        lambda: f"<[{abs(rng.choice(INTEGERS))}]>", lambda: "<[5]>", lambda: "<|end|>",
        lambda: f"<[{rng.choice((0, 5))}-{abs(rng.choice(INTEGERS))}]>",
        lambda: "(" * (n := rng.choice((3, 60, 3000))) + '"c"' + ")" * n,
    )  # fmt: skip
    lines = [f"start: {names[0]}"]
    for name in names:
        attributes = rng.choice(("",) * 12 + ("[lazy]", f"[max_tokens={rng.choice(COUNTS)}]"))
        parts = " ".join(_term(rng, sound, edge) for _ in range(rng.randrange(1, 4)))
        lines.append(f'{name}{attributes}: {parts} | "q" {_term(rng, sound, edge)} | "w"')
    return "\n".join(lines)


def gbnf(rng: random.Random) -> str:
    """A grammar in llama.cpp's form."""
    sound = (
        lambda: "a", lambda: "root", lambda: '"x"', lambda: "[a-z]", lambda: '("y" | a)*',
        lambda: "[^0-9]+", lambda: f'"x"{{{rng.choice((1, 2, 3, 40))}}}', lambda: '"é\\n"',
    )  # fmt: skip
    edge = (
        lambda: json.dumps(text(rng)[:200]), lambda: f'"x"{{{rng.choice(COUNTS)}}}',
        lambda: f"a{{0,{rng.choice(COUNTS)}}}", lambda: "[^\\x00-\\xff]",
        lambda: "[\\U7fffffff]", lambda: "." + "*" * rng.choice((1, 2, 90)),
        lambda: "(" * (n := rng.choice((3, 60, 3000))) + '"c"' + ")" * n,
    )  # fmt: skip
    parts = [" ".join(_term(rng, sound, edge) for _ in range(rng.randrange(1, 4)))
             for _ in range(3)]  # fmt: skip
    between = run(rng) if rng.random() < 0.05 else ""
    return f'root ::= {parts[0]} | "q" {parts[1]} | "w"\n{between}a ::= {parts[2]} | "v"'
