"""Quality beside speed: answers that must be exact, and the perplexity of a text."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidemill.base.errors import config_error
from tidemill.bench.client import HttpFailure
from tidemill.bench.dialects import Prompt
from tidemill.bench.send import Sender
from tidemill.bench.stats import mean_interval, wilson

_WINDOW = 2000  # characters that one request scores

_MATCHES: dict[str, Callable[[str, str], bool]] = {
    "exact": lambda answer, expected: answer == expected,
    "prefix": lambda answer, expected: answer.startswith(expected),
    "contains": lambda answer, expected: expected in answer,
}
MATCHES = tuple(_MATCHES)


def read_questions(path: Path) -> list[tuple[list[dict[str, str]], list[str]]]:
    """(messages, accepted answers) from JSONL rows: ``prompt`` (a text) or ``messages``, and
    ``expected`` (a text or several).

    Raises:
        TidemillError: CONFIG naming the line.
    """
    found = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise config_error("answers", f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            messages = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
            wanted = row["expected"]
            accepted = [wanted] if isinstance(wanted, str) else list(map(str, wanted))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise config_error(
                "answers", f"{path}, line {number}: expected prompt or messages, and expected"
            ) from error
        found.append((messages, [text.strip() for text in accepted]))
    if not found:
        raise config_error("answers", f"{path} holds no question")
    return found


async def exact_match(
    sender: Sender, path: Path, match: str, output_tokens: int, streams: int
) -> dict[str, Any]:
    """Ask every question of a file, greedily.

    Args:
        match: how an answer, without white space around it, is compared: one of `MATCHES`.
        output_tokens: the most tokens of an answer.
        streams: questions that are asked at the same time.

    Returns:
        ``accuracy`` with its 95 % interval, ``outcomes`` (1, 0; None: the request failed) in the
        order of the file, and ``failed``, requests that count as wrong.
    """
    questions = read_questions(path)
    matches = _MATCHES[match]
    sampling = replace(sender.sampling, temperature=0.0, ignore_eos=False)
    asker = replace(sender, sampling=sampling)
    outcomes: list[int | None] = [None] * len(questions)
    waiting = iter(enumerate(questions))
    zero = sender.clock()

    async def stream() -> None:
        for number, (messages, accepted) in waiting:
            prompt = Prompt(messages, None, output_tokens)
            begun = sender.clock() - zero
            trace = await asker.send(prompt, 0, begun, zero, keep_text=True)
            if trace.error is None:
                answer = trace.text.replace("\0", "").strip()
                outcomes[number] = int(any(matches(answer, text) for text in accepted))

    await asyncio.gather(*(stream() for _ in range(streams)))
    hits = sum(outcome or 0 for outcome in outcomes)
    return {
        "file": path.name,
        "match": match,
        "count": len(outcomes),
        "failed": outcomes.count(None),
        "accuracy": hits / len(outcomes),
        "interval": wilson(hits, len(outcomes)),
        "outcomes": outcomes,
    }


def _windows(text: str) -> list[str]:
    """Pieces of about `_WINDOW` characters that end between words."""
    found, start = [], 0
    while start < len(text):
        end = min(len(text), start + _WINDOW)
        if end < len(text) and (space := text.rfind(" ", start + _WINDOW // 2, end)) > 0:
            end = space
        found.append(text[start:end])
        start = end
    return [piece for piece in found if piece.strip()]


async def _score(sender: Sender, text: str) -> tuple[float, int, int]:
    """(negative log likelihood, tokens, bytes) of all tokens of a text but the first."""
    body = {
        "model": sender.sampling.model, "prompt": text, "max_tokens": 1, "echo": True,
        "logprobs": 1, "temperature": 0,
    }  # fmt: skip
    answer: Any = await sender.client.post_json(sender.dialect.route, body)
    found = answer["choices"][0]["logprobs"]
    rows = zip(found["token_logprobs"], found["text_offset"], strict=True)
    scored = [(value, offset) for value, offset in rows if value is not None and offset < len(text)]
    if not scored:
        return 0.0, 0, 0
    size = len(text[scored[0][1] :].encode())
    return -sum(value for value, _ in scored), len(scored), size


async def perplexity(sender: Sender, path: Path) -> dict[str, Any]:
    """Score a text in windows of about 2,000 characters, each without context before it.

    Returns:
        ``perplexity`` per token (comparable between models of one tokenizer), ``bits_per_byte``
        (comparable between all) with its 95 % interval over windows.

    Raises:
        TidemillError: CONFIG where the server does not give the prompt's logprobs (completions
            with ``echo`` and ``logprobs``).
    """
    try:
        windows = _windows(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise config_error("perplexity", f"cannot read {path}: {error}") from error
    if sender.dialect.route != "/completions":
        raise config_error("perplexity", "perplexity needs --endpoint completions")
    try:
        scores = [await _score(sender, text) for text in windows]
    except (HttpFailure, KeyError, TypeError, IndexError, ValueError) as error:
        raise config_error(
            "perplexity",
            f"the server does not score prompts (echo with logprobs): {error}",
        ) from error
    scores = [row for row in scores if row[1]]
    if not scores:
        raise config_error("perplexity", f"{path} has no text that can be scored")
    loss, tokens, size = (sum(column) for column in zip(*scores, strict=True))
    rates = [nll / count / math.log(2) for nll, _, count in scores]
    return {
        "file": path.name,
        "tokens": tokens,
        "bytes": size,
        "perplexity": math.exp(loss / tokens),
        "bits_per_byte": loss / size / math.log(2),
        "interval": mean_interval(rates) if len(rates) > 1 else None,
        "windows": [round(rate, 6) for rate in rates],
    }
