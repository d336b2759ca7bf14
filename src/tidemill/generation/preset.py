"""What a model brings to every request: a system message, first turns, sampling values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidemill.contract.sampling import SamplingParams
from tidemill.generation.request import GenerateRequest

_UNSET = SamplingParams()
_SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Preset:
    """Values that a request's own take precedence over.

    Attributes:
        system: the system message of a conversation that begins with none.
        messages: turns before the conversation, after its system message.
        sampling: fields of `SamplingParams`, where the request's have their defaults. A field
            whose default is a number (presence_penalty) cannot be reset to it by a request.
    """

    system: str | None = None
    messages: Sequence[Mapping[str, str]] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def conversation(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """A conversation with the system message and the first turns; an invalid or empty one is
        returned as it is, for the checks that follow."""
        if not isinstance(messages, list | tuple) or not messages:
            return messages
        if not self.system and not self.messages:
            return messages
        head = messages[0]
        own = isinstance(head, Mapping) and head.get("role") in _SYSTEM_ROLES
        system = [{"role": "system", "content": self.system}] if self.system else []
        first = list(messages[:1]) if own else system
        return [*first, *map(dict, self.messages), *messages[1 if own else 0 :]]

    def applied(self, request: GenerateRequest) -> GenerateRequest:
        """The request with these values where it has none."""
        if self == NO_PRESET:
            return request
        given = request.sampling
        values = {
            name: value
            for name, value in self.sampling.items()
            if getattr(given, name) == getattr(_UNSET, name) and given.takes(name)
        }
        messages = request.messages
        return replace(
            request,
            sampling=given.with_values(values),
            messages=None if messages is None else self.conversation(messages),
        )


NO_PRESET = Preset()
