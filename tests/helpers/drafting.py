"""Drafters that know what the model will say, and are wrong now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from helpers.fake_backend import next_token

from tidemill.contract.plan import NewSequence
from tidemill.contract.speculation import LOOKUP
from tidemill.worker.runner import Runner
from tidemill.worker.speculate.drafter import Drafter, Int32, Proposal, Wanted
from tidemill.worker.speculate.speculation import Speculation


class OracleDrafter:
    """Proposes some tokens that will come, then perhaps a wrong one and what follows that; now and
    then nothing, and it then says when it will propose nothing after the next token either.

    Args:
        vocab: of the fake model.
    """

    reads_hidden = False

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._new: dict[int, NewSequence] = {}

    def add(self, new: NewSequence, cached: int) -> None:
        self._new[new.seq_id] = new

    def read(self, seq_id: int, tokens: Int32) -> None:
        assert seq_id in self._new

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        return [self._propose(self._new[one.seq_id], one) for one in wanted]

    def _propose(self, new: NewSequence, one: Wanted) -> Proposal:
        context = one.tokens.tolist()
        # Steps of 3: two in a row without drafts now and then, which the first one announces.
        kind, right = len(context) // 3 % 3, sum(context) % 6
        if kind == 0:
            return Proposal((), (len(context) + 1) // 3 % 3 == 0)
        drafts: list[int] = []
        while len(drafts) < one.most and len(drafts) < right + kind:
            sampling = new.sampling
            key: tuple[int, ...] = ()
            if sampling.temperature:
                key = (sampling.seed or 0, new.choice, len(context))
            token = next_token(context, self._vocab, key=key)
            if len(drafts) == right:
                token = (token + 1) % self._vocab
            drafts.append(token)
            context.append(token)
        return Proposal(tuple(drafts))

    def forget(self, seq_id: int) -> None:
        del self._new[seq_id]


class ReplayDrafter:
    """Proposes what the same request was answered before: up to 9 tokens, of which every 7th is
    another one.

    Args:
        answers: tokens by request id and choice.
    """

    reads_hidden = False

    def __init__(self, answers: Mapping[tuple[str, int], Sequence[int]]) -> None:
        self._answers = answers
        self._new: dict[int, NewSequence] = {}

    def add(self, new: NewSequence, cached: int) -> None:
        self._new[new.seq_id] = new

    def read(self, seq_id: int, tokens: Int32) -> None:
        assert seq_id in self._new

    def propose(self, wanted: Sequence[Wanted]) -> list[Proposal]:
        return [self._propose(self._new[one.seq_id], one) for one in wanted]

    def _propose(self, new: NewSequence, one: Wanted) -> Proposal:
        answer = self._answers[new.request_id, new.choice]
        first = len(one.tokens) - new.prompt_len
        coming = range(first, min(len(answer), first + min(9, one.most)))
        return Proposal(tuple(1 if i % 7 == 6 else answer[i] for i in coming))

    def forget(self, seq_id: int) -> None:
        del self._new[seq_id]


def let_draft(runner: Runner, drafter: Drafter) -> None:
    """What is called lookup is this drafter in a runner."""
    runner.speculation = Speculation(runner.inputs.sequences, {LOOKUP: lambda: drafter})


def let_an_oracle_draft(runner: Runner, vocab: int) -> None:
    """What is called lookup is an oracle in this runner."""
    let_draft(runner, OracleDrafter(vocab))
