"""Requests with an output program on an engine of brook's, and what they gave."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tidemill.contract.config import EngineConfig
from tidemill.contract.program import Grammar, OutputProgram, Phase
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason, RequestError
from tidemill.contract.sampling import SamplingParams
from tidemill.contract.wire import EngineStats, Stats
from tidemill.engine.core import DEPTH, EngineCore, Message, make_core
from tidemill.executor.inproc import open_inproc
from tidemill.loading import bundled_models, open_model
from tidemill.text.tokenizer import Tokenizer


@dataclass
class Answer:
    """One choice: tokens (the end token excluded), text, why it ended."""

    tokens: list[int] = field(default_factory=list)
    finish: str = ""
    stop_token: int | None = None
    error: RequestError | None = None
    logprobs: list[Any] = field(default_factory=list)
    messages: int = 0


class Brook:
    """An engine over the bundled model; close it when done."""

    def __init__(
        self,
        *,
        jump_ahead: bool = True,
        always_draft: bool = True,
        depth: int = DEPTH,
        path: Path | None = None,
        **config: Any,
    ) -> None:
        model = str(path or bundled_models()["brook"])
        settings: dict[str, Any] = {"kv_memory": 64 * 2**20, "threads": 1, **config}
        self.config = EngineConfig(model=model, served_name="brook", **settings)
        opened = open_inproc(self.config, lambda line: None)
        self.executor = opened.executor
        self.core: EngineCore = make_core(
            opened,
            self.config,
            depth=depth,
            jump_ahead=jump_ahead,
            always_draft=always_draft,
        ).start()
        self.tokenizer = Tokenizer(open_model(model).tokenizer)
        self._open: dict[str, dict[int, Answer]] = {}
        self._left = 0
        self._changed = threading.Condition()
        self._client = self.core.connect(self._take)

    def _take(self, message: Message) -> None:
        outputs: tuple[ChoiceOutput, ...] = getattr(message, "outputs", ())
        with self._changed:
            for output in outputs:
                answer = self._open[output.request_id].setdefault(output.choice, Answer())
                answer.messages += 1
                tokens = list(output.token_ids)
                if output.stop_token is not None:
                    tokens = tokens[:-1]
                answer.tokens += tokens
                answer.logprobs += output.logprobs or ()
                if output.finish_reason is not None:
                    answer.finish = str(output.finish_reason)
                    answer.stop_token, answer.error = output.stop_token, output.error
                    self._left -= 1
            self._changed.notify_all()

    def text(self, answer: Answer) -> str:
        """What an answer says, special tokens' spellings included."""
        return self.tokenizer.decode(answer.tokens, skip_special_tokens=False)

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a text as a template writes it."""
        return tuple(self.tokenizer.encode(text, add_special=False))

    def prompt(self, text: str) -> tuple[int, ...]:
        """A user's turn in brook's chat format."""
        return self.ids(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")

    def request(self, name: str, prompt: str, phases: tuple[Phase, ...], **sampling: Any) -> Any:
        """A request, not yet sent."""
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 200, "seed": 7, **sampling})
        return EngineRequest(
            request_id=name,
            prompt_token_ids=self.prompt(prompt),
            sampling=params,
            program=OutputProgram(phases),
        )

    def run(self, requests: list[EngineRequest], timeout: float = 120) -> list[list[Answer]]:
        """Send them together; the choices of each, in order."""
        self.send(requests)
        return self.wait(requests, timeout)

    def send(self, requests: list[EngineRequest]) -> None:
        """Send them together."""
        with self._changed:
            for request in requests:
                self._open[request.request_id] = {}
            self._left += sum(r.sampling.n for r in requests)
        for request in requests:
            self.core.submit(self._client, request)

    def wait(self, requests: list[EngineRequest], timeout: float = 120) -> list[list[Answer]]:
        """Wait for the end of all that were sent; the choices of each of these, in order."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._left == 0, timeout), self._open
        found = [self._open.pop(r.request_id) for r in requests]
        return [[choices[i] for i in sorted(choices)] for choices in found]

    def ask(self, prompt: str, *phases: Phase, **sampling: Any) -> list[Answer]:
        """One request and its choices."""
        return self.run([self.request("one", prompt, phases, **sampling)])[0]

    def cancel(self, name: str) -> None:
        """End a request."""
        self.core.cancel(self._client, name, None, FinishReason.CANCELLED)

    def stats(self) -> EngineStats:
        """The engine's figures now."""
        answers: SimpleQueue[Message] = SimpleQueue()
        client = self.core.connect(answers.put)
        self.core.request_stats(client, 1)
        stats = answers.get(timeout=60)
        self.core.disconnect(client)
        assert isinstance(stats, Stats)
        return stats.stats

    def close(self) -> None:
        """Free everything."""
        self.core.close()


def schema(source: str) -> Grammar:
    """A schema's phase."""
    return Grammar("json_schema", source, "response_format")
