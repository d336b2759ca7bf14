"""Controller: how many drafts each stream verifies, and whom it asks for more.

It maximises tokens per second of the whole step. A draft is worth the product of the chances of
itself and of those before it; it costs what the step takes longer. So drafts are taken in the order
of their products, of whatever stream, up to the number at which (streams + products) / seconds is
highest. Asking costs as well: a stream that waits for drafts is not launched ahead of its step's
result, and a drafter that is a model computes.

One step in EXPLORE_EVERY asks and verifies a little of everything, so that what has become worth it
is noticed; who computes is asked for one stream, and seldom (`probes.py`). One step in
HOLD_OUT_EVERY of those with drafts verifies none: what such steps take is what speculation is
measured against. All choices follow from what was measured; none changes an answer.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.contract.plan import MOST_CONFIDENT, DraftsWanted, StepResult
from tidemill.contract.speculation import LOOKUP
from tidemill.sched.cost import Load, StepCost
from tidemill.sched.sequence import Sequence, quiet
from tidemill.sched.speculation.acceptance import (
    MAX_MODEL_DRAFTS,
    Acceptance,
    Acceptances,
    proposes,
)
from tidemill.sched.speculation.chosen import NO_CHOICE, Chosen
from tidemill.sched.speculation.figures import Figures
from tidemill.sched.speculation.prices import DraftingPrice, Pace, StepPrices
from tidemill.sched.speculation.probes import Probes

MAX_DRAFTS = 16
"""Drafts of a row. One more costs a step little while it waits for memory, and only those at the
front are likely to come true."""

EXPLORE_EVERY = 64
HOLD_OUT_EVERY = 64

DECIDE_EVERY = 4
"""Results of a sequence after which it is decided again whom it asks."""

# A gain in rate below this share is noise of the estimates.
_LEAST_GAIN = 0.02
_LEAST_PRODUCT = 0.02


class StepDone(NamedTuple):
    """A step that has its result.

    Attributes:
        load: its work.
        result: with its times.
        chosen: the drafts that it was to verify.
        now: seconds.
        ahead: it was launched ahead of the result before.
        goes_on: the next step follows at once.
        pure: its rows are streams, which have one known token each.
    """

    load: Load
    result: StepResult
    chosen: Chosen
    now: float
    ahead: bool
    goes_on: bool
    pure: bool


class Controller:
    """See the module.

    Args:
        cost: predicts steps.
        adaptive: False: everything proposed is verified, as long as there is room.
    """

    def __init__(self, cost: StepCost, *, adaptive: bool = True) -> None:
        self._cost = cost
        self.adaptive = adaptive
        self.prices = StepPrices(cost)
        self.pace = Pace()
        self.figures = Figures()
        self._acceptances = Acceptances()
        self._drafting: dict[str, DraftingPrice] = {}
        self._steps = self._drafted_steps = 0
        self._exploring = self._explored = False
        self._probes = Probes()
        # Of the latest step: tokens per second without drafts, seconds of one more token, streams.
        self._rate = self._token = 0.0
        self._streams = 1
        self._waiters = 1.0  # streams that wait for their result, in steps where some do
        self._version = 0

    def acceptance_of(self, seq: Sequence) -> Acceptance:
        """The chances of a sequence's request."""
        if seq.acceptance is None:
            seq.acceptance = self._acceptances.of_request(seq.owner.request.tenant)
        return seq.acceptance

    def price_of(self, drafter: str) -> DraftingPrice:
        """What a drafter takes."""
        return self._drafting.setdefault(drafter, DraftingPrice())

    # -- what a step verifies ------------------------------------------------------------------

    def choose(self, streams: list[Sequence], most: int) -> Chosen:
        """How many of its drafts each of the step's streams verifies, `most` in all."""
        chosen = self._choose(streams, most)
        return chosen if self._probes.seq_id is None else chosen._replace(probes=True)

    def _choose(self, streams: list[Sequence], most: int) -> Chosen:
        load = Load()
        for seq in streams:
            load.add(seq.planned, seq.remaining)
        self._steps += 1
        # What is proposed to a step that explores is verified by the next one.
        self._exploring = self.adaptive and self._steps % EXPLORE_EVERY == 0
        tries = self._explored
        self._explored = self._exploring
        self._probes.choose(streams if self._exploring else [])
        drafting = [seq for seq in streams if seq.drafts]
        if not (self.adaptive and self._cost.ready):
            return Chosen({seq.seq_id: len(seq.drafts) for seq in drafting})
        rows = len(streams)
        candidates = self._candidates(drafting)
        most = max(0, min(most, len(candidates)))
        seconds = self.prices.of_drafts(load, rows, max(most, 1))
        gap = self.pace.gap
        waiting = sum(1 for s in streams if s.asked and not quiet(s.asked, s.quiet_for))
        self._look(rows, seconds, gap, waiting)
        self._probes.passed(seconds[0] + gap)
        if not (most or (tries and drafting)):
            return NO_CHOICE
        best, best_rate, products = 0, rows / (seconds[0] + gap) * (1 + _LEAST_GAIN), float(rows)
        for count, (product, _) in enumerate(candidates[:most], 1):
            products -= product  # stored negated, for the order
            rate = products / (seconds[count] + gap)
            if rate > best_rate:
                best, best_rate = count, rate
        taken: dict[int, int] = {}
        for _, seq_id in candidates[:best]:
            taken[seq_id] = taken.get(seq_id, 0) + 1
        if tries:
            for seq in drafting:
                taken.setdefault(seq.seq_id, 1)
        if taken:
            self._drafted_steps += 1
            if self._drafted_steps % HOLD_OUT_EVERY == 0:
                return Chosen({}, seconds[0], held_out=True)
        return Chosen(taken, seconds[0])

    def _candidates(self, drafting: list[Sequence]) -> list[tuple[float, int]]:
        """Negated products of chances, each with its sequence, best first. Products of a sequence
        do not increase, so that the first so many are drafts one after the other."""
        found: list[tuple[float, int]] = []
        # What is worth far less than a token costs is not looked at.
        least = -max(_LEAST_PRODUCT, 0.25 * self._rate * self._token)
        for seq in drafting:
            chance, by = self.acceptance_of(seq).chance, seq.drafts_by
            confidence, product, seq_id = seq.confidence, -1.0, seq.seq_id
            for index in range(min(len(seq.drafts), MAX_DRAFTS)):
                product *= chance((by, confidence[index] if confidence else 0))
                if product > least:
                    break
                found.append((product, seq_id))
        found.sort()
        return found

    def _look(self, rows: int, seconds: list[float], gap: float, waiting: int) -> None:
        """What asking depends on; a change of a tenth makes it be decided again."""
        rate, token = rows / (seconds[0] + gap), seconds[1] - seconds[0]
        # The first draft of a step may cost much and the next ones little, or the reverse.
        token = max(token, (seconds[-1] - seconds[0]) / (len(seconds) - 1))
        if not (
            0.9 * self._rate < rate < 1.1 * self._rate
            and 0.9 * self._token <= token <= 1.1 * self._token
        ):
            self._version += 1
            self._rate, self._token = rate, token
        self._streams = rows
        if waiting:
            self._waiters += 0.1 * (waiting - self._waiters)

    # -- who is asked ----------------------------------------------------------------------------

    def wanted(self, seq: Sequence) -> tuple[DraftsWanted, ...]:
        """Who may propose drafts after a sampling row of the sequence, and how many."""
        # The row samples at least one token, and so does the row that verifies the drafts.
        most = min(MAX_DRAFTS, seq.max_len - seq.known - 2)
        if most <= 0:
            return ()
        if not self.adaptive or not self._rate:
            return tuple(DraftsWanted(name, min(most, _most_of(name))) for name in seq.drafters)
        if self._exploring:
            return self._explore(seq, most)
        if most < MAX_DRAFTS:
            return self._decide(seq, most)
        known, kept = (self._version, seq.evidence // DECIDE_EVERY), seq.wanted
        if kept is None or kept[0] != known:
            kept = seq.wanted = known, self._decide(seq, most)
        return kept[1]

    def _explore(self, seq: Sequence, most: int) -> tuple[DraftsWanted, ...]:
        """Whoever costs nothing, and those who compute where they are asked in any case or it is
        the sequence's turn."""
        decided = {one.drafter: one for one in self._decide(seq, most)}
        for name in seq.drafters:
            if name == LOOKUP or self._probes.seq_id == seq.seq_id:
                decided[name] = DraftsWanted(name, min(most, _most_of(name)))
        return tuple(decided[name] for name in seq.drafters if name in decided)

    def _decide(self, seq: Sequence, most: int) -> tuple[DraftsWanted, ...]:
        acceptance, found = self.acceptance_of(seq), []
        for name in seq.drafters:
            if name == LOOKUP:
                least = self._least_confidence(acceptance, name, most)
                if least <= MOST_CONFIDENT:
                    found.append(DraftsWanted(name, most, least))
            elif count := self._length(acceptance, name, min(most, MAX_MODEL_DRAFTS)):
                found.append(DraftsWanted(name, count))
        return tuple(found)

    def _least_confidence(self, acceptance: Acceptance, name: str, most: int) -> int:
        """The lowest class of certainty from which on drafts that cost nothing to propose bring
        more than they cost to verify, and than it costs to wait for them in vain."""
        waiting = self._waiting_cost + _LEAST_GAIN
        for least in range(1, MOST_CONFIDENT + 1):
            chance = acceptance.chance((name, least))
            value = _value([chance] * most, self._rate * self._token)
            if value * acceptance.chance((name, proposes(least))) > waiting:
                return least
        return MOST_CONFIDENT + 1

    def _length(self, acceptance: Acceptance, name: str, most: int) -> int:
        """How many drafts to ask a drafter for that computes them; 0: none."""
        call, row = self.price_of(name).parts()
        rate, token = self._rate, self._rate * self._token
        # Streams draft together: the call is shared.
        call /= self._streams
        best, best_value, value = 0, 0.0, 0.0
        for index, (brings, admitted, there) in enumerate(acceptance.yields(name).by_position()):
            if index == most:
                break
            value += max(0.0, brings - admitted * token) - rate * (call + row * there)
            if value > best_value:
                best, best_value = index + 1, value
        return best if best_value > self._waiting_cost + _LEAST_GAIN else 0

    @property
    def _waiting_cost(self) -> float:
        """Tokens that a stream costs by waiting for its result; shared by those that wait."""
        return self._rate * self.pace.waiting / max(1.0, self._waiters)

    # -- what came of it -------------------------------------------------------------------------

    def take(
        self, seq: Sequence, drafter: str, confidence: tuple[int, ...], came_true: int
    ) -> None:
        """A row with drafts has its result: of so many (at least one), so many came true."""
        count = len(confidence)
        self.figures.count(drafter, count, came_true)
        acceptance = self.acceptance_of(seq)
        for index in range(min(came_true + 1, count)):
            acceptance.observe((drafter, confidence[index]), index < came_true)
        seq.evidence += 1

    def proposed(
        self, seq: Sequence, asked: DraftsWanted, drafter: str, confidence: tuple[int, ...]
    ) -> None:
        """One who computes was asked for drafts, and had so many (of `drafter`, if any)."""
        acceptance, name, products, product = self.acceptance_of(seq), asked.drafter, [], 1.0
        if drafter == name:
            for one in confidence[:MAX_MODEL_DRAFTS]:
                product *= acceptance.chance((name, one))
                products.append(product)
        acceptance.yields(name).observe(asked.most, products, self._rate * self._token)
        seq.evidence += 1

    def took(self, seq: Sequence, drafter: str, least: int, proposed: bool) -> None:
        """A row has its result that waited for drafts of at least this certainty."""
        self.acceptance_of(seq).observe((drafter, proposes(least)), proposed)
        seq.evidence += 1

    def step_done(self, step: StepDone) -> None:
        """A step has its result."""
        timings, drafting = step.result.timings, step.result.drafting
        seconds, figures = timings.forward + timings.sampling, self.figures
        for done in drafting:
            self.price_of(done.drafter).observe(done)
            figures.count_time(done)
        busy = seconds + sum(done.seconds for done in drafting)
        if step.chosen.probes:
            self._probes.took(sum(d.seconds for d in drafting if d.drafter != LOOKUP))
            self._version += 1  # what was learned concerns the other streams as well
        self.pace.observe(step.now, busy, ahead=step.ahead, goes_on=step.goes_on)
        if not step.pure:
            return
        self.prices.observe(step.load, seconds)
        chosen = step.chosen
        if chosen.held_out:
            figures.count_held_out(chosen.plain_seconds, seconds)
        elif chosen.drafts:
            rows = step.result.rows
            tokens = sum(len(row.token_ids) for row in rows)
            spent = busy + self.pace.waiting
            figures.count_step(len(rows), tokens, chosen.plain_seconds, spent)


def _most_of(drafter: str) -> int:
    return MAX_DRAFTS if drafter == LOOKUP else MAX_MODEL_DRAFTS


def _value(chances: list[float], each: float) -> float:
    """Tokens that drafts with these chances bring, less those that their time would bring else."""
    best = value = 0.0
    product = 1.0
    for chance in chances:
        product *= chance
        value += product - each
        if value > best:
            best = value
    return best
