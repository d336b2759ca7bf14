"""The tables of docs/api.md that are made of the fields' table.

python tests/helpers/field_tables.py    # writes them into the page
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src")]

from tidemill.server.dialects.anthropic import neutral as anthropic  # noqa: E402
from tidemill.server.dialects.fields import Alias, Fields, Group, Neutral  # noqa: E402
from tidemill.server.dialects.openai import neutral  # noqa: E402
from tidemill.server.dialects.openai.responses import neutral as responses  # noqa: E402

PAGE = ROOT / "docs" / "api.md"
BEGIN, END = "<!-- fields: begin -->", "<!-- fields: end -->"


def _less(fields: Fields, than: Fields) -> Fields:
    return {name: known for name, known in fields.items() if than.get(name) != known}


TABLES: dict[str, Fields] = {
    "chat, completions, responses": neutral.GENERATION,
    "chat": _less(neutral.CHAT, neutral.GENERATION),
    "completions": _less(neutral.COMPLETION, neutral.GENERATION),
    "`stream_options`": neutral.STREAM_OPTIONS,
    "messages": neutral.MESSAGE,
    "responses": _less(responses.REQUEST, neutral.GENERATION),
    "`reasoning` of responses": responses.REASONING,
    "`stream_options` of responses": _less(responses.STREAM_OPTIONS, neutral.STREAM_OPTIONS),
    "tokenize": neutral.TOKENIZE,
    "embeddings, rerank, score": neutral.VECTORS,
    "embeddings": _less(neutral.EMBEDDING, neutral.VECTORS),
    "rerank": _less(neutral.RERANK, neutral.VECTORS),
    "`/v1/messages`": anthropic.MESSAGES,
    "its messages": anthropic.MESSAGE,
    "its blocks": anthropic.BLOCK,
    "its `tools`": anthropic.TOOL,
    "its `thinking`": anthropic.THINKING,
    "its `output_config`": anthropic.OUTPUT,
}


def neutral_table() -> str:
    """Where, which values, which fields."""
    rows = ["| in | value | fields |", "|---|---|---|"]
    for where, fields in TABLES.items():
        found: dict[str, list[str]] = {}
        for name, known in fields.items():
            if isinstance(known, Neutral):
                value = known.described() or "null alone"
                found.setdefault(value, []).append(f"`{name}`")
        for value, names in sorted(found.items()):
            rows.append(f"| {where} | {value} | {', '.join(names)} |")
    return "\n".join(rows)


def alias_table() -> str:
    """Other names, and the fields that they mean."""
    rows = ["| in | name | means |", "|---|---|---|"]
    for where, fields in TABLES.items():
        for name, known in fields.items():
            parts = known.members if isinstance(known, Group) else {"": known}
            for inner, part in parts.items():
                if isinstance(part, Alias):
                    path = f"{name}.{inner}" if inner else name
                    rows.append(f"| {where} | `{path}` | {_meaning(part)} |")
    return "\n".join(rows)


def _meaning(alias: Alias) -> str:
    targets = " or ".join(f"`{name}`" for name in alias.targets())
    words = ", ".join(
        f"{_json(word)}: {'nothing' if value is None else _json(value)}"
        for word, value in alias.values.items()
    )
    return f"{targets} ({words})" if words else targets


def _json(value: object) -> str:
    import json

    return json.dumps(value)


def tables() -> str:
    """What stands between the marks."""
    return f"\n{neutral_table()}\n\nOther names of fields:\n\n{alias_table()}\n"


if __name__ == "__main__":
    head, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(head + BEGIN + tables() + END + rest.split(END)[1])
