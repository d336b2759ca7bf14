"""Every parameter in every dialect, from the dialects' own declarations; docs/parameters.md.

python tests/helpers/parameter_matrix.py    # writes the tables into the page
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src")]

from tidemill.base.errors import TidemillError  # noqa: E402
from tidemill.contract.repetition import RepetitionDetection  # noqa: E402
from tidemill.contract.sampling import RANGES, SamplingParams  # noqa: E402
from tidemill.server.dialects.anthropic import schema as anthropic  # noqa: E402
from tidemill.server.dialects.anthropic import translate as anthropic_names  # noqa: E402
from tidemill.server.dialects.fields import Alias, Fields, Group, Neutral  # noqa: E402
from tidemill.server.dialects.kserve import options as kserve_names  # noqa: E402
from tidemill.server.dialects.kserve import schema as kserve  # noqa: E402
from tidemill.server.dialects.llamacpp import schema as llamacpp  # noqa: E402
from tidemill.server.dialects.llamacpp import translate as llamacpp_names  # noqa: E402
from tidemill.server.dialects.members import Body  # noqa: E402
from tidemill.server.dialects.ollama import schema as ollama  # noqa: E402
from tidemill.server.dialects.ollama import translate as ollama_names  # noqa: E402
from tidemill.server.dialects.openai import schema as openai  # noqa: E402
from tidemill.server.dialects.openai import translate as openai_names  # noqa: E402
from tidemill.server.dialects.openai.responses import schema as responses  # noqa: E402
from tidemill.server.dialects.tgi import schema as tgi  # noqa: E402
from tidemill.server.dialects.tgi import translate as tgi_names  # noqa: E402

PAGE = ROOT / "docs" / "parameters.md"
BEGIN, END = "<!-- parameters: begin -->", "<!-- parameters: end -->"

PARAMETERS = SamplingParams.__struct_fields__
_TURN = [{"role": "user", "content": "hi"}]


@dataclass(frozen=True)
class Column:
    """One kind of body that asks for a generation.

    Attributes:
        title: in the tables.
        path: of a route that takes it.
        bodies: the struct, and within it those that hold parameters, by their path.
        names: parameter -> path of the member.
        base: the least body.
        needs: parameter -> members without which its member is refused.
        answered: where the kind of body is answered by more than one route: the others.
    """

    title: str
    path: str
    bodies: Mapping[str, type[Body]]
    names: Mapping[str, str]
    base: Mapping[str, Any]
    needs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    answered: tuple[str, ...] = ()

    def body(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """A body with values at paths."""
        made: dict[str, Any] = dict(self.base)
        for path, value in values.items():
            *outer, last = path.split(".")
            inside = made
            for name in outer:
                inside[name] = dict(inside.get(name, {}))
                inside = inside[name]
            inside[last] = value
        return made

    def accepts(self, name: str, value: Any) -> bool:
        """Whether a value of a parameter that is not one here is taken since it changes nothing."""
        known = list(self.bodies.values())[-1].known.get(name)
        return isinstance(known, Neutral) and known.takes(value)

    @property
    def place(self) -> str:
        """Where most parameters stand, with a dot; empty: in the body itself."""
        return next((f"{path}." for path in self.bodies if path), "")


COLUMNS = (
    Column(
        "chat", "/v1/chat/completions", {"": openai.ChatRequest}, openai_names.CHAT_PARAMETERS,
        {"messages": _TURN}, {"logprobs": {"logprobs": True}},
    ),
    Column(
        "completions", "/v1/completions", {"": openai.CompletionRequest},
        openai_names.COMPLETION_PARAMETERS, {"prompt": "hi"},
    ),
    Column(
        "responses", "/v1/responses", {"": responses.ResponseRequest},
        openai_names.RESPONSE_PARAMETERS, {"input": "hi"},
    ),
    Column(
        "Anthropic", "/v1/messages", {"": anthropic.MessagesRequest}, anthropic_names.PARAMETERS,
        {"messages": _TURN, "max_tokens": 9},
    ),
    Column(
        "Ollama", "/api/chat", {"": ollama.OllamaChat, "options": ollama.OllamaOptions},
        ollama_names.PARAMETERS, {"messages": _TURN, "stream": False},
        {"logprobs": {"logprobs": True}}, ("/api/generate",),
    ),
    Column(
        "llama.cpp", "/completion", {"": llamacpp.LlamaCompletion}, llamacpp_names.PARAMETERS,
        {"prompt": "hi"}, {}, ("/completions", "/infill"),
    ),
    Column(
        "TGI", "/generate", {"": tgi.TgiGenerateRequest, "parameters": tgi.TgiParameters},
        tgi_names.PARAMETERS, {"inputs": "hi"},
        {
            "n": {"parameters.do_sample": True},
            "temperature": {"parameters.do_sample": True},
            "logprobs": {"parameters.details": True},
        },
        ("/generate_stream", "/"),
    ),
    Column(
        "KServe", "/v2/models/tiny/generate", {"": kserve.KserveGenerate}, kserve_names.PARAMETERS,
        {"text_input": "hi"}, {},
        tuple(
            f"/v2/models/{{model}}{version}/{verb}"
            for version in ("", "/versions/{version}")
            for verb in ("infer", "generate", "generate_stream")
        ),
    ),
)  # fmt: skip

_CANDIDATES: tuple[Any, ...] = (
    *(True, False, 0.5, 3, "x", ("zq",), (65,), ((65, 66),), {65: 1.0}),
    RepetitionDetection(max_pattern_size=3, min_count=4),
)


def sample(name: str) -> Any:
    """A value of a parameter that is not its default."""
    unset = getattr(SamplingParams(), name)
    candidates = list(_CANDIDATES)
    if name in RANGES:
        low, high = RANGES[name]
        candidates += [high, low, (low + high) / 2]
    for value in candidates:
        if value == unset and type(value) is type(unset):
            continue
        try:
            return getattr(SamplingParams(**{name: value}), name)
        except TidemillError:
            continue
    raise AssertionError(f"no value for {name}: add one to _CANDIDATES")


def as_json(value: Any) -> Any:
    """A value as a body has it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def parameter_table() -> str:
    """Each parameter, and its name in each dialect."""
    head = ["parameter", *(column.title for column in COLUMNS)]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name in PARAMETERS:
        shown = [_named(column, name) for column in COLUMNS]
        rows.append("| " + " | ".join([f"`{name}`", *shown]) + " |")
    return "\n".join(rows)


def _named(column: Column, name: str) -> str:
    if name in column.names:
        return f"`{column.names[name].removeprefix('parameters.')}`"
    return "no effect" if column.accepts(name, as_json(sample(name))) else "no"


def known_fields(column: Column) -> Iterator[tuple[str, str]]:
    """Every member that a kind of body knows, without what is nested deeper, and what of it is
    taken."""
    for path, body in column.bodies.items():
        names = [n for n in body.__struct_fields__ if n not in column.bodies or path]
        for name in names:
            yield name, "yes"
        yield from (
            (name, _taken(known)) for name, known in body.known.items() if name not in names
        )


def _taken(known: Neutral | Alias | Group) -> str:
    if isinstance(known, Alias):
        return "as " + " or ".join(f"`{name}`" for name in known.targets())
    if isinstance(known, Group):
        return "yes"
    return known.described() or "no"


def _reason(name: str) -> str:
    for column in COLUMNS:
        for body in column.bodies.values():
            known = body.known.get(name)
            if isinstance(known, Neutral) and name not in body.__struct_fields__ and known.feature:
                return known.feature + (f" ({known.instead})" if known.instead else "")
    return ""


def field_table() -> str:
    """Each member of any dialect's bodies, what of it each dialect takes, and why not more."""
    titles = [column.title for column in COLUMNS]
    found: dict[str, dict[str, str]] = {}
    for column in COLUMNS:
        for name, taken in known_fields(column):
            found.setdefault(name, {})[column.title] = taken
    rows = [f"| member | {' | '.join(titles)} | not supported |", "|---" * (len(titles) + 2) + "|"]
    for name, taken in sorted(found.items()):
        cells = [taken.get(title, "") for title in titles]
        rows.append(f"| `{name}` | {' | '.join(cells)} | {_reason(name)} |".replace("\n", " "))
    return "\n".join(rows)


def known_in(fields: Fields) -> Iterator[tuple[str, Neutral]]:
    """The entries of a table that are neutral values."""
    return ((name, known) for name, known in fields.items() if isinstance(known, Neutral))


def tables() -> str:
    """What stands between the marks."""
    return f"""
## Sampling and output

{parameter_table()}

## Every member

{field_table()}
"""


if __name__ == "__main__":
    head, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(head + BEGIN + tables() + END + rest.split(END)[1])
