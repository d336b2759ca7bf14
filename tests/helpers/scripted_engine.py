"""An engine client without an engine: what it answers is a script. The server's test oracle."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.request import (
    AdapterUse,
    ChoiceOutput,
    EngineRequest,
    FinishReason,
    RequestError,
    TokenLogprob,
)
from tidemill.contract.wire import AdapterInfo, EngineInfo, EngineStats

EOS = 257

Script = Callable[[EngineRequest, int], Sequence[int]]


def fake_info(**changes: object) -> EngineInfo:
    """A plausible EngineInfo for the tokenizer of `tiny_text`."""
    values: dict[str, object] = {
        "model": "tiny",
        "backend": "fake",
        "isa": "none",
        "device": "cpu",
        "dtype": "float32",
        "quantization": "none",
        "kv_dtype": "float32",
        "threads": 1,
        "vocab_size": 320,
        "max_model_len": 256,
        "block_size": 32,
        "num_blocks": 64,
        "kv_bytes_per_token": 64,
        "kv_bytes": 64 * 32 * 64,
        "weight_bytes": 1000,
        "max_num_seqs": 64,
        "max_step_tokens": 512,
        "prefix_caching": True,
        "eos_token_ids": (EOS,),
        "hidden_size": 8,
    }
    return EngineInfo(**{**values, **changes})  # type: ignore[arg-type]


def hashed_vector(request: EngineRequest) -> np.ndarray:
    """float32: eight numbers (or one, of a head) that depend on what is read alone."""
    seed = hashlib.sha256(str(request.prompt_token_ids).encode()).digest()[:8]
    rng = np.random.default_rng(int.from_bytes(seed, "little"))
    size = 1 if request.pooling is not None and request.pooling.head else 8
    return rng.standard_normal(size).astype(np.float32)


def hashed_letters(request: EngineRequest, choice: int) -> list[int]:
    """Lower-case letters and spaces that depend on prompt, seed and choice; then an end token."""
    sampling = request.sampling
    key = f"{request.prompt_token_ids}/{sampling.seed}/{choice}/{sampling.temperature}"
    digest = hashlib.sha256(key.encode()).digest()
    if sampling.temperature == 0:
        digest = hashlib.sha256(str(request.prompt_token_ids).encode()).digest()
    letters = [ord("abcdefghijklmnopqrstuvwxyz     "[b % 31]) for b in digest]
    return [*letters[: 8 + digest[0] % 16], EOS]


class ScriptedEngine:
    """Implements the engine client's interface over a script of tokens per choice.

    Honours max_tokens, ignore_eos, stop_token_ids, min_tokens, logprobs and cancellation; one token
    per choice and step.

    Attributes:
        requests: everything submitted.
        cancelled: (request id, choice, reason) of every cancel.
        fail_after: when set, each request ends with `error` after so many steps.
    """

    def __init__(
        self,
        script: Script = hashed_letters,
        *,
        info: EngineInfo | None = None,
        step_seconds: float = 0.0,
        cached_tokens: int = 0,
        fail_after: int | None = None,
        error: RequestError | None = None,
    ) -> None:
        self.info = info or fake_info()
        self.script = script
        self.step_seconds = step_seconds
        self.cached_tokens = cached_tokens
        self.fail_after = fail_after
        self.error = error or RequestError("internal", "the scripted failure")
        self.requests: list[EngineRequest] = []
        self.cancelled: list[tuple[str, int | None, str]] = []
        self.dead = False
        self.dropped: list[str] = []
        self._live: dict[str, set[int]] = {}
        self._steps = 0

    def submit(self, request: EngineRequest) -> AsyncIterator[ChoiceOutput]:
        self.requests.append(request)
        if self.dead:
            raise TidemillError(ErrorKind.UNAVAILABLE, "the engine process has ended")
        self._live[request.request_id] = set(range(request.sampling.n))
        return self._run(request)

    def cancel(self, request_id: str, choice: int | None = None, reason: str = "cancelled") -> None:
        self.cancelled.append((request_id, choice, reason))
        live = self._live.get(request_id, set())
        live -= {choice} if choice is not None else set(live)

    @property
    def problem(self) -> str | None:
        return "the engine process has ended" if self.dead else None

    @property
    def last_stats(self) -> EngineStats:
        return EngineStats()

    async def stats(self) -> EngineStats:
        if self.dead:
            raise TidemillError(ErrorKind.UNAVAILABLE, "the engine process has ended")
        live = sum(len(choices) for choices in self._live.values())
        return EngineStats(
            running=live, blocks_used=live, blocks_total=self.info.num_blocks, steps=self._steps
        )

    async def check_adapter(self, use: AdapterUse) -> AdapterInfo:
        """Every path is an adapter, but those with `bad` in it."""
        if "bad" in use.path:
            raise TidemillError(ErrorKind.MODEL_FILE, "it is damaged", param="lora_path")
        digest = hashlib.blake2b(use.path.encode(), digest_size=16).hexdigest()
        return AdapterInfo(digest=digest, rank=8, nbytes=1000)

    def drop_adapter(self, digest: str) -> None:
        self.dropped.append(digest)

    async def close(self) -> None:
        self.dead = True

    async def _run(self, request: EngineRequest) -> AsyncIterator[ChoiceOutput]:
        live = self._live[request.request_id]
        scripts = [list(self.script(request, c)) for c in range(request.sampling.n)]
        resumed = [len(tokens) for tokens in request.resume] or [0] * request.sampling.n
        for step in itertools.count():
            await asyncio.sleep(self.step_seconds)
            self._steps += 1
            outputs = []
            for choice in sorted(live):
                if self.fail_after is not None and step >= self.fail_after:
                    output = ChoiceOutput(
                        request.request_id,
                        choice,
                        finish_reason=FinishReason.ERROR,
                        error=self.error,
                    )
                else:
                    output = self._output(request, choice, scripts[choice], resumed[choice] + step)
                outputs.append(output)
                if output.finish_reason is not None:
                    live.discard(choice)
            for output in outputs:
                yield output
            if not live:
                break
        self._live.pop(request.request_id, None)

    def _output(
        self, request: EngineRequest, choice: int, script: Sequence[int], step: int
    ) -> ChoiceOutput:
        if request.pooling is not None:
            return ChoiceOutput(
                request.request_id,
                choice,
                finish_reason=FinishReason.STOP,
                cached_tokens=self.cached_tokens,
                pooled=hashed_vector(request).tobytes(),
            )
        sampling = request.sampling
        first = len(request.resume[choice]) if request.resume else 0
        token = script[step] if step < len(script) else ord("z")
        ends = {*sampling.stop_token_ids}
        if not sampling.ignore_eos:
            ends.update(self.info.eos_token_ids)
        finish = stop = None
        if token in ends and step >= sampling.min_tokens:
            finish, stop = FinishReason.STOP, token
        elif step + 1 == sampling.max_tokens:
            finish = FinishReason.LENGTH
        prompt_logprobs = None
        if step == choice == 0 and sampling.prompt_logprobs is not None:
            known = [_logprob(t, sampling.prompt_logprobs) for t in request.prompt_token_ids]
            prompt_logprobs = (None, *known[1:])
        wanted = sampling.logprobs
        return ChoiceOutput(
            request.request_id,
            choice,
            token_ids=(token,),
            logprobs=(_logprob(token, wanted),) if wanted is not None else None,
            prompt_logprobs=prompt_logprobs,
            finish_reason=finish,
            stop_token=stop,
            cached_tokens=self.cached_tokens if step == first else None,
        )


def _logprob(token: int, top: int) -> TokenLogprob:
    alternatives = [(token, -0.5), *((64 + i, -1.0 - i) for i in range(top))]
    return TokenLogprob(token, -0.5, tuple(alternatives[:top]))
