"""The trigger automaton compared with a naive search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.grammar.triggers import Triggers

tokens = st.integers(0, 2)
sequences = st.lists(st.lists(tokens, min_size=1, max_size=4), min_size=1, max_size=4)


@given(sequences, st.lists(tokens, max_size=30))
def test_a_sequence_is_met_where_it_ends(wanted: list[list[int]], stream: list[int]) -> None:
    automaton, state = Triggers(wanted), 0
    for end in range(1, len(stream) + 1):
        state, met = automaton.step(state, stream[end - 1])
        assert met == any(stream[:end][-len(w) :] == w for w in wanted)
