"""What is sent: lengths, shared prefixes, and published traces in their forms."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tidemill.base.errors import TidemillError
from tidemill.bench.lengths import length_draw
from tidemill.bench.options import BenchOptions
from tidemill.bench.trace_files import read_trace
from tidemill.bench.words import Segment, Vocabulary
from tidemill.bench.workload import Workload

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
MOONCAKE = """\
{"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 30535, "input_length": 1300, "output_length": 26, "hash_ids": [46, 47, 2353]}
"""  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (AZURE_2023, [(0, 4808, 10), (0.052, 3180, 8)]),
        (AZURE_2024, [(0, 2162, 5), (0.007405, 2399, 6)]),
        (BURSTGPT, [(0, 472, 18), (113, 417, 276)]),
        (MOONCAKE, [(0, 1100, 52), (3.053, 1300, 26)]),
        ('{"timestamp": 2, "input": 3, "output": 4}\n', [(0, 3, 4)]),
    ],
    ids=["azure-2023", "azure-2024", "burstgpt", "mooncake", "plain"],
)
def test_published_traces(tmp_path: Path, text: str, expected: list[tuple]) -> None:
    (path := tmp_path / "trace").write_text(text)
    found = [(r.due, r.input_tokens, r.output_tokens) for r in read_trace(path)]
    assert [pytest.approx(row, abs=1e-5) for row in expected] == found


def test_a_replayed_trace_shares_what_its_hashes_share(tmp_path: Path) -> None:
    (path := tmp_path / "trace.jsonl").write_text(MOONCAKE)
    options = BenchOptions("http://x", trace=path, speeds=(2.0,), max_output=30)
    workload = Workload(options.validate())
    first, second = workload.replay(2.0)
    assert second.due == pytest.approx(3.053 / 2) and first.turns[0].output_tokens == 30
    one, two = (workload.conversation().prompt(s.turns[0]).text().split() for s in (first, second))
    assert (len(one), len(two)) == (1100, 1300)
    assert one[:1024] == two[:1024] and one[1024:1028] != two[1024:1028]
    assert workload.clipped == 1
    again = [workload.conversation().prompt(s.turns[0]).text() for s in workload.replay(1.0)]
    assert again[0].split()[:4] != one[:4]  # no cache knows what is replayed again
    assert again[0].split()[:1024] == again[1].split()[:1024]


@pytest.mark.parametrize(
    "text", ["a,b\n1,2\n", AZURE_2023 + "yesterday,1,2\n", '{"input_length": 1}\n', ""]
)
def test_a_trace_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (path := tmp_path / "some.trace").write_text(text)
    with pytest.raises(TidemillError, match=r"some\.trace") as caught:
        read_trace(path)
    assert caught.value.param == "trace"


def test_lengths_are_drawn() -> None:
    rng = random.Random(1)
    for text, mean in (
        ("7", 7), ("uniform:10:30", 20), ("normal:100:5", 100), ("lognormal:50:0.5", 56.7),
        ("exponential:40", 40),
    ):  # fmt: skip
        draw = length_draw("input_tokens", text)
        values = [draw(rng) for _ in range(4000)]
        assert sum(values) / 4000 == pytest.approx(mean, rel=0.05) and min(values) >= 1
    assert max(length_draw("x", "lognormal:50:2:80")(rng) for _ in range(500)) == 80


@pytest.mark.parametrize("text", ["0", "-3", "uniform:5", "uniform:9:5", "zipf:3", "normal:a:b"])
def test_lengths_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(TidemillError, match="input_tokens"):
        length_draw("input_tokens", text)


@pytest.mark.parametrize("ids", [False, True])
def test_segments_have_their_length_and_are_prefixes(ids: bool) -> None:
    vocabulary = Vocabulary(3, 500, ids)
    split = (lambda s: s.split(",")) if ids else str.split
    for length in (1, 3, 4, 5, 1000, 70_000):
        assert len(split(vocabulary.text([Segment(9, length)]))) == length
    assert vocabulary.text([Segment(9, 90)]).startswith(vocabulary.text([Segment(9, 80)]))
    starts = {vocabulary.text([Segment(key, 4)]) for key in range(5000)}
    assert len(starts) == 5000
    assert Vocabulary(4, 500, ids).text([Segment(9, 80)]) != vocabulary.text([Segment(9, 80)])


def test_prefix_groups() -> None:
    options = BenchOptions("http://x", shared_prefix=50, prefix_groups=3, input_tokens=60)
    workload = Workload(options)
    texts = [workload.conversation().prompt(s.turns[0]).text() for s in workload.closed(60)]
    assert len({" ".join(t.split()[:50]) for t in texts}) == 3
    assert len(set(texts)) == 60
    again = Workload(options)
    assert texts == [again.conversation().prompt(s.turns[0]).text() for s in again.closed(60)]


@pytest.mark.parametrize(("skew", "share"), [(0.0, 1 / 3), (1.0, 6 / 11), (4.0, 0.93)])
def test_models_are_drawn(skew: float, share: float) -> None:
    options = BenchOptions("http://x", models=("a", "b", "c"), model_skew=skew).validate()
    drawn = [session.model for session in Workload(options).closed(3000)]
    assert drawn.count("a") / 3000 == pytest.approx(share, abs=0.03)
    assert drawn == [session.model for session in Workload(options).closed(3000)]


def test_a_trace_may_name_models(tmp_path: Path) -> None:
    line = '{"timestamp": 2, "input": 3, "output": 4, "model": "b"}'
    (path := tmp_path / "trace.jsonl").write_text(f"{line}\n" + line.replace(', "model": "b"', ""))
    workload = Workload(BenchOptions("http://x", trace=path).validate())
    assert [session.model for session in workload.replay(1.0)] == ["b", None]
    assert workload.models == {"b"}


def test_options_that_exclude_each_other() -> None:
    for how, param in (
        ({"rates": (1.0,), "sweep": "rate"}, "rate"),
        ({"goodput": True}, "goodput"),
        ({"ramp": (1.0, 2.0)}, "duration"),
        ({"endpoint": "soap"}, "endpoint"),
        ({"objectives": {"speed": 1.0}}, "slo"),
        ({"turns": 2, "token_ids": True}, "turns"),
    ):
        with pytest.raises(TidemillError) as caught:
            BenchOptions("http://x", **how).validate()  # type: ignore[arg-type]
        assert caught.value.param == param


def test_an_exported_audit_log_is_a_trace(tmp_path: Path) -> None:
    """What happened on a server, without content: arrivals, lengths, what was cached by client."""
    detail = {"prompt": 300, "generated": 20, "cached": 256, "client": "key:a"}
    rows = [
        {"type": "row", "chain": "acts", "at": 1, "kind": "POST /admin/keys", "detail": {}},
        *(
            {
                "type": "row",
                "chain": "r",
                "kind": "request",
                "at": at,
                "detail": {**detail, "at": at},
            }
            for at in (5000, 7500)
        ),
        {"type": "row", "chain": "r", "kind": "request", "at": 9000, "detail": None},
        {"type": "head", "chain": "r", "seq": 4},
    ]
    (path := tmp_path / "audit.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read_trace(path)
    assert [(r.due, r.input_tokens, r.output_tokens) for r in found] == [
        (0, 300, 20),
        (2.5, 300, 20),
    ]
    options = BenchOptions("", trace=path)
    first, second = (session.turns[0].segments for session in Workload(options).replay(1.0))
    assert [s.length for s in first] == [256, 44]
    assert first[0] == second[0] and first[1].key != second[1].key
