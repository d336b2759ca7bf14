"""Positions of a streamed answer (`contract.position`): telling them, and going on from one."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec

from tidemill.base.clock import wall
from tidemill.base.errors import TidemillError, bad_request, unsupported
from tidemill.base.ids import Decided, decided, new_seed
from tidemill.contract.position import (
    COMMENT,
    HEADER,
    MEMBER,
    Begun,
    Mark,
    Position,
    Told,
    encoder,
    position_decoder,
)
from tidemill.contract.request import ChoiceOutput, EngineRequest, FinishReason
from tidemill.contract.wire import EngineInfo
from tidemill.generation.prepare import Prepared


class Positions:
    """Of one request.

    Args:
        resumed: the answer goes on from there; None: it begins.

    Attributes:
        resumes: the client has the beginning of the answer.
        repeating: what is made next is what the client has already.
        moved: the answer ends here, so that another server goes on with it: the last mark says so.
        leaving: whether answers are to end that way now.
    """

    def __init__(self, resumed: Position | None = None) -> None:
        begun = None if resumed is None else resumed.begun
        key = secrets.token_bytes(32) if begun is None else bytes.fromhex(begun.key)
        self._decided = Decided(key, int(wall()) if begun is None else begun.created)
        self._begun = begun
        self._resumed = resumed if begun is not None else None
        self._known = set[tuple[int, int]]()  # choices whose cached tokens are known
        self._told: list[Told] = []
        self._begin_told = begun is not None
        self.leaving: Callable[[], bool] = lambda: False
        self.resumes = self.repeating = begun is not None
        self.moved = False
        decided.set(self._decided)

    def begin(self, info: EngineInfo, prepared: Prepared) -> bool:
        """A request is prepared; False: answers of its kind have no positions.

        Raises:
            TidemillError: BAD_REQUEST or UNSUPPORTED: the position is not of this request and
                model, or answers of its kind have none.
        """
        sampling = prepared.request.sampling
        if sampling.beam_search or sampling.prompt_logprobs is not None:
            if self._begun is None:
                return False
            name = "beam_width" if sampling.beam_search else "prompt_logprobs"
            raise unsupported(name, f"an answer with {name} cannot be gone on with at a position")
        prompts = _digest(prepared.prompts)
        if self._begun is None:
            self._begun = Begun(
                self._decided.key.hex(), self._decided.created, info.identity, prompts
            )
            return True
        if self._begun.identity != info.identity:
            raise _bad("it is of another model, or of an engine that computes otherwise")
        if self._begun.prompts != prompts:
            raise _bad("its prompt is another one")
        assert self._resumed is not None
        number, most = len(prepared.prompts), sampling.n
        if any(t.prompt >= number or t.choice >= most for t in self._resumed.told):
            raise _bad("the request has not so many choices")
        return True

    def request(self, prompt: int, request: EngineRequest) -> EngineRequest:
        """The request to the engine for a prompt: with its seed, and with the tokens known."""
        sampling = request.sampling
        if sampling.seed is None:
            sampling = msgspec.structs.replace(sampling, seed=new_seed())
        resume: tuple[tuple[int, ...], ...] = ()
        if self._resumed is not None:
            tokens = self._resumed.tokens(prompt, sampling.n)
            resume = tokens if any(tokens) else ()
        return msgspec.structs.replace(request, sampling=sampling, resume=resume)

    def known(self, ids: list[str]) -> list[tuple[int, ChoiceOutput]]:
        """The outputs that the client has, with their prompts."""
        if self._resumed is None:
            return []
        found = []
        for one in self._resumed.told:
            if one.cached is not None:
                self._known.add((one.prompt, one.choice))
            finish = None if one.finish is None else FinishReason(one.finish)
            output = ChoiceOutput(
                ids[one.prompt],
                one.choice,
                token_ids=one.tokens,
                finish_reason=finish,
                stop_token=one.stop_token,
                cached_tokens=one.cached,
            )
            found.append((one.prompt, output))
        return found

    def note(self, prompt: int, output: ChoiceOutput) -> ChoiceOutput:
        """An output of the engine, as the answer is made of it; it is told with the next mark."""
        if (prompt, output.choice) in self._known and output.cached_tokens is not None:
            output = msgspec.structs.replace(output, cached_tokens=None)
        finish = output.finish_reason
        told = Told(
            prompt,
            output.choice,
            output.token_ids,
            None if finish is None else finish.value,
            output.stop_token,
            output.cached_tokens,
        )
        self._told.append(told)
        return output

    def behind(self, data: bytes, *, events: bool, whole: bool) -> bytes:
        """The parts made of a step's outputs, as they are to be sent: those that the client has are
        not, and a mark follows the others.

        Args:
            data: the parts.
            events: they are those of a stream of events; else lines.
            whole: the answer ends with them.
        """
        if self.repeating:
            return b""
        self.moved = not whole and self.leaving()
        return data + self._mark(events=events)

    def _mark(self, *, events: bool) -> bytes:
        begun = None if self._begin_told else self._begun
        mark = Mark(begun, tuple(self._told), self.moved)
        self._begin_told = True
        self._told.clear()
        data = encoder.encode(mark)
        return COMMENT + data + b"\n\n" if events else MEMBER + data + b"}\n"


def read_position(value: str, body: bytes) -> tuple[Positions, bytes]:
    """What a request's header says of positions, and its own body.

    Raises:
        TidemillError: BAD_REQUEST.
    """
    try:
        size = int(value)
        if not 0 <= size <= len(body):
            raise ValueError
        found = position_decoder.decode(body[:size]) if size else None
        if found is not None and found.begun is not None:
            bytes.fromhex(found.begun.key)
            for one in found.told:
                if one.finish is not None:
                    FinishReason(one.finish)
                if one.prompt < 0 or one.choice < 0 or not all(0 <= t < 2**31 for t in one.tokens):
                    raise ValueError
        return Positions(found), body[size:]
    except ValueError:  # msgspec's errors are some
        raise _bad("0, or how many bytes of a position precede the body") from None


def _bad(why: str) -> TidemillError:
    return bad_request(HEADER, f"{HEADER}: {why}")


def _digest(prompts: Sequence[tuple[int, ...]]) -> str:
    hasher = blake2b(digest_size=16)
    for prompt in prompts:
        hasher.update(msgspec.msgpack.encode(prompt))
    return hasher.hexdigest()
