"""Generated texts as tensors, and as the documents and events of the generate extension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tidemill.generation.choices import ChoiceDelta
from tidemill.server.dialects.kserve.schema import KserveOptions
from tidemill.server.dialects.kserve.tasks import VERSION
from tidemill.server.dialects.kserve.tensors import Output, write_outputs
from tidemill.server.host.generation import Generation
from tidemill.server.transport.framing import SSE
from tidemill.server.transport.sink import Piece

OCTETS = b"application/octet-stream"


def head_of(model: str, request_id: str | None) -> dict[str, Any]:
    """The first members of an answer."""
    named = {} if request_id is None else {"id": request_id}
    return {**named, "model_name": model, "model_version": VERSION}


class _Choices:
    """The texts of all choices, each behind its input where that is asked for."""

    def __init__(
        self, generation: Generation, texts: Sequence[str], options: KserveOptions
    ) -> None:
        each = generation.prepared.request.sampling.n
        shown = texts if not options.exclude_input_in_output else [""] * len(texts)
        self.texts = [[text] for text in shown for _ in range(each)]
        self.finish = ["" for _ in self.texts]
        self.tokens = [0 for _ in self.texts]
        self.input_tokens = [
            len(prompt) for prompt in generation.prepared.prompts for _ in range(each)
        ]

    def add(self, delta: ChoiceDelta) -> None:
        self.texts[delta.index].append(delta.text)
        self.finish[delta.index] = delta.finish or ""
        self.tokens[delta.index] += len(delta.token_ids)

    def outputs(self) -> list[Output]:
        """All tensors."""
        shape = (len(self.texts),)
        return [
            Output("text_output", "BYTES", shape, ["".join(text) for text in self.texts]),
            Output("finish_reason", "BYTES", shape, self.finish),
            Output("num_input_tokens", "INT32", shape, self.input_tokens),
            Output("num_output_tokens", "INT32", shape, self.tokens),
        ]


class InferFormat:
    """An inference's answer.

    Args:
        generation: the request.
        head: see `head_of`.
        texts: the inputs.
        options: the request's.
        wanted: the outputs that were asked for; empty: all.
        binary: whether an output's data are bytes.

    Attributes:
        content_type: of the document, once it is made.
        json_length: bytes of its JSON text, if others follow.
    """

    def __init__(
        self,
        generation: Generation,
        head: dict[str, Any],
        texts: Sequence[str],
        options: KserveOptions,
        wanted: Sequence[str],
        binary: Callable[[str], bool],
    ) -> None:
        self.content_type = b"application/json"
        self.json_length: int | None = None
        self._head = head
        self._choices = _Choices(generation, texts, options)
        self._wanted = wanted
        self._binary = binary

    async def read_prompt(self, delta: ChoiceDelta) -> None:
        """There is nothing of the prompt in an answer."""

    def add(self, delta: ChoiceDelta) -> None:
        """Collect."""
        self._choices.add(delta)

    def document(self, generation: Generation) -> list[Piece]:
        """The tensors that are asked for, in that order."""
        outputs = {output.name: output for output in self._choices.outputs()}
        chosen = [outputs[name] for name in self._wanted or outputs]
        pieces, self.json_length = write_outputs(self._head, chosen, self._binary)
        if self.json_length is not None:
            self.content_type = OCTETS
        return [*pieces]

    def opening(self, generation: Generation) -> bytes:
        """An inference is not streamed."""
        return b""

    def events(self, delta: ChoiceDelta) -> bytes:
        """See `opening`."""
        return b""

    def closing(self, generation: Generation) -> bytes:
        """See `opening`."""
        return b""


class GenerateFormat:
    """The generate extension's answer: one document, or an event for each step.

    Args:
        generation: the request, of one text.
        head: see `head_of`.
        text: the input.
        options: the request's.
        streamed: events are written.
    """

    content_type = b"application/json"

    def __init__(
        self,
        generation: Generation,
        head: dict[str, Any],
        text: str,
        options: KserveOptions,
        *,
        streamed: bool,
    ) -> None:
        self._head = head
        self._choices = _Choices(generation, [""] if streamed else [text], options)
        self._more = {
            "finish_reason": options.return_finish_reason,
            "num_input_tokens": options.return_num_input_tokens,
            "num_output_tokens": options.return_num_output_tokens,
        }

    async def read_prompt(self, delta: ChoiceDelta) -> None:
        """There is nothing of the prompt in an answer."""

    def add(self, delta: ChoiceDelta) -> None:
        """Collect."""
        self._choices.add(delta)

    def document(self, generation: Generation) -> list[Piece]:
        """The outputs as members: a list where there are several choices."""
        outputs = {output.name: output.values for output in self._choices.outputs()}
        names = ("text_output", *(name for name, asked in self._more.items() if asked))
        members = {n: outputs[n][0] if len(outputs[n]) == 1 else outputs[n] for n in names}
        return [msgspec.json.encode({**self._head, **members})]

    def opening(self, generation: Generation) -> bytes:
        """Nothing."""
        return b""

    def events(self, delta: ChoiceDelta) -> bytes:
        """New text; the last event has what else was asked for."""
        self._choices.add(delta)
        if not delta.text and delta.finish is None:
            return b""
        event: dict[str, Any] = {**self._head, "text_output": delta.text}
        if delta.finish is not None:
            outputs = {output.name: output.values for output in self._choices.outputs()}
            event |= {name: outputs[name][0] for name, asked in self._more.items() if asked}
        return SSE.part(msgspec.json.encode(event))

    def closing(self, generation: Generation) -> bytes:
        """Nothing: the stream ends."""
        return b""
