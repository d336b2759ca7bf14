"""The whole control path under random use: every operation is followed by the integrity check.

The backend's tokens depend on what was read through the block tables, so tokens that equal the
expected ones at the end show that no block was mixed up on the way.
"""

from __future__ import annotations

from helpers.drafting import let_an_oracle_draft
from helpers.drive import Machine, request
from helpers.fake_backend import computed_tokens, expected_tokens
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tidemill.contract.request import EngineRequest, FinishReason

VOCAB = 5  # few tokens, so that prefixes and end tokens meet often


class SchedulerMachine(RuleBasedStateMachine):
    """Random submissions, forks, cancellations, preemptions, failures and steps."""

    @initialize(
        depth=st.sampled_from([1, 2]),
        groups=st.sampled_from([1, 2]),
        blocks=st.integers(6, 24),
        budget=st.sampled_from([1, 3, 8, 64]),
        seqs=st.integers(1, 6),
        caching=st.booleans(),
        timed=st.booleans(),
        pipelined=st.booleans(),
        layers=st.sampled_from([0, 2, 7]),
        drafter=st.sampled_from(["off", "lookup", "oracle"]),
    )
    def build(
        self,
        depth: int,
        groups: int,
        blocks: int,
        budget: int,
        seqs: int,
        caching: bool,
        timed: bool,
        pipelined: bool,
        layers: int,
        drafter: str,
    ) -> None:
        self.machine = Machine(
            depth=depth,
            groups=groups,
            num_blocks=blocks,
            block_size=4,
            max_step_tokens=budget,
            max_num_seqs=seqs,
            max_model_len=40,
            prefix_caching=caching,
            vocab=VOCAB,
            layers=layers,
            pipelined=pipelined,
            speculate="off" if drafter == "off" else "lookup",
        )
        if drafter == "oracle":
            let_an_oracle_draft(self.machine.runner, VOCAB)
        if timed:
            self.machine.backend.cost = lambda x: 0.01 + 0.02 * computed_tokens(x, layers)
        self.requests: dict[str, EngineRequest] = {}
        self.disturbed: set[str] = set()

    @rule(
        prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=22),
        count=st.integers(1, 14),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        sampled=st.booleans(),
        priority=st.integers(-1, 1),
        resumed=st.integers(0, 3),
        prompt_logprobs=st.sampled_from([None, None, 1]),
        ends=st.booleans(),
        tenant=st.sampled_from("abc"),
        weight=st.sampled_from([1.0, 0.5, 4.0]),
        background=st.sampled_from([False, False, True]),
    )
    def submit(
        self,
        prompt: list[int],
        count: int,
        n: int,
        sampled: bool,
        priority: int,
        resumed: int,
        prompt_logprobs: int | None,
        ends: bool,
        tenant: str,
        weight: float,
        background: bool,
    ) -> None:
        name = f"r{len(self.requests)}"
        seed = 11 if sampled else None
        resume: tuple[tuple[int, ...], ...] = ()
        if resumed == 3 and not ends:
            done = min(2, count)
            resume = tuple(
                tuple(expected_tokens(prompt, done, VOCAB, seed=seed, choice=c)) for c in range(n)
            )
        one = request(
            name,
            prompt,
            count,
            temperature=float(sampled),
            seed=11,
            n=n,
            priority=priority,
            resume=resume,
            prompt_logprobs=prompt_logprobs,
            ignore_eos=not ends,
            tenant=tenant,
            weight=weight,
            background=background,
        )
        self.requests[name] = one
        self.machine.submit(one)

    @rule()
    def launch(self) -> None:
        self.machine.launch()

    @rule()
    def land(self) -> None:
        if self.machine.in_flight:
            self.machine.land()

    @rule(steps=st.integers(1, 6))
    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.machine.step()

    @rule(pick=st.integers(0, 50), choice=st.sampled_from([None, 0, 1]), stop=st.booleans())
    def cancel(self, pick: int, choice: int | None, stop: bool) -> None:
        if self.requests:
            name = f"r{pick % len(self.requests)}"
            self.disturbed.add(name)
            reason = FinishReason.STOP if stop else FinishReason.CANCELLED
            self.machine.take(self.machine.scheduler.cancel(name, choice, reason))

    @rule()
    def take_back(self) -> None:
        """Steps vanish before they ran, and are planned again."""
        self.machine.backend.forget_steps()
        self.machine.roll_back()

    @rule()
    def fail(self) -> None:
        """A step fails after it wrote garbage-free but uncounted tokens; its rows end."""
        if self.machine.in_flight:
            self.disturbed |= {
                name
                for name in self.requests
                for plan, _ in self.machine.in_flight
                for seq in self.machine.scheduler.sequences()
                if seq.owner.request.request_id == name
                and any(row.seq_id == seq.seq_id for row in plan.rows)
            }
            self.machine.backend.fail_next = 1
            self.machine.land()
            self.machine.backend.fail_next = 0

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        self.machine.run(4000)
        assert self.machine.memory.num_used == 0
        self.machine.submit(request("last", [1], 1))
        self.machine.run()
        assert len(self.machine.runner.inputs.sequences) == 1, "the worker was not told of an end"
        for name, one in self.requests.items():
            for choice in range(one.sampling.n):
                box = self.machine.collected[name, choice]
                assert len(box.terminal) == 1, f"{name}/{choice} ended {len(box.terminal)} times"
                assert box.outputs[-1] is box.terminal[0]
                self._check_tokens(name, one, choice)

    def _check_tokens(self, name: str, one: EngineRequest, choice: int) -> None:
        box = self.machine.collected[name, choice]
        prompt = one.prompt_token_ids
        if box.terminal[0].error is not None and name not in self.disturbed:
            assert len(prompt) + 1 > self.machine.scheduler.max_len
            return
        limit = self.machine.scheduler.max_len - len(prompt)
        count = min(one.sampling.max_tokens or 0, max(limit, 0))
        seed = 11 if one.sampling.temperature else None
        want = expected_tokens(prompt, count, VOCAB, seed=seed, choice=choice)
        if not one.sampling.ignore_eos and 3 in want:
            want = want[: want.index(3) + 1]
        want = want[len(one.resume[choice]) :] if one.resume else want
        if name in self.disturbed:
            assert box.tokens == want[: len(box.tokens)]
        else:
            assert box.tokens == want


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
