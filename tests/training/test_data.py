"""The generator: determinism, the held-out rule, and answers that are right by construction."""

import json
import random

import pytest

from training.data import arithmetic, code, context, tools
from training.data.mixture import FAMILIES, corpus
from training.data.source import Source, held_out
from training.data.voices import VOICES, plain, spoken
from training.judge import KINDS, Answer, cases, parse
from training.render import prompt_text, target_text


def text_of(example):
    return prompt_text(example) + target_text(example)


def test_same_seed_gives_the_same_bytes():
    first = "".join(text_of(e) for e in corpus("x", 300)).encode()
    again = "".join(text_of(e) for e in corpus("x", 300)).encode()
    other = "".join(text_of(e) for e in corpus("y", 300)).encode()
    assert first == again
    assert first != other


def test_evaluation_cases_are_the_same_every_time():
    first, again = cases("tool_call", 20), cases("tool_call", 20)
    assert [text_of(c.example) for c in first] == [text_of(c.example) for c in again]


@pytest.mark.parametrize("evaluation", [False, True])
def test_names_and_numbers_stay_on_their_side(evaluation):
    source = Source(5, evaluation)
    for _ in range(200):
        assert held_out("name", source.invented()) == evaluation
        assert held_out("name", source.word()) == evaluation
        assert held_out("number", str(source.number(100, 9999))) == evaluation


@pytest.mark.parametrize("evaluation", [False, True])
def test_tool_names_and_sums_stay_on_their_side(evaluation):
    source = Source(6, evaluation)
    for _ in range(100):
        for tool in tools.one_call(source).tools:
            assert held_out("tool", tool["function"]["name"]) == evaluation
        answer = arithmetic.sums(source, digits=2, add=True).answer["content"]
        a, b = map(int, answer.split(" = ")[0].split(" + "))
        assert held_out("sum", str((a, b))) == evaluation


def test_training_never_sees_the_sixth_wording():
    wordings = [str(i) for i in range(6)]
    trained, evaluated = Source(1), Source(1, evaluation=True)
    assert {trained.template(wordings) for _ in range(300)} == set("01234")
    assert {evaluated.template(wordings) for _ in range(300)} == set("012345")
    assert evaluated.unseen_template and not trained.unseen_template


def test_training_and_evaluation_prompts_do_not_overlap():
    trained = {prompt_text(e) for e in corpus("overlap", 3000)}
    for kind in ("tool_call", "json", "facts", "code", "sum2_think"):
        for case in cases(kind, 50):
            assert prompt_text(case.example) not in trained


def test_worked_arithmetic_is_right():
    rng = random.Random(3)
    for _ in range(300):
        a, b = sorted((rng.randint(0, 9999), rng.randint(0, 9999)), reverse=True)
        assert arithmetic.worked_sum(a, b).endswith(f"sum: {a + b}")
        assert arithmetic.worked_difference(a, b).endswith(f"difference: {a - b}")


def test_python_programs_parse_before_and_after_an_edit():
    source = Source(8)
    for _ in range(200):
        example = code.edit(source)
        if "```python" in example.answer["content"]:
            compile(example.expect["code"], "edited", "exec")


def test_extraction_answers_are_json_of_facts_in_the_prompt():
    source = Source(9)
    for _ in range(100):
        example = context.extraction(source)
        values = json.loads(example.answer["content"])
        assert 2 <= len(values) <= 6
        assert all(str(v) in example.prompt[-1]["content"] for v in values.values())


def test_calls_use_only_what_the_schema_offers():
    source = Source(10)
    for generate in (tools.one_call, tools.several_calls):
        for _ in range(100):
            example = generate(source)
            schemas = {t["function"]["name"]: t["function"]["parameters"] for t in example.tools}
            for call in example.expect["calls"]:
                schema = schemas[call["name"]]
                assert set(call["arguments"]) <= set(schema["properties"])
                assert set(schema["required"]) <= set(call["arguments"])


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_right_answer_is_judged_right_and_a_wrong_one_wrong(kind):
    for case in cases(kind, 10):
        raw = target_text(case.example).removesuffix("<|im_end|>")
        assert KINDS[kind].right(case.example, parse(raw))
        wrong = Answer("nothing", [{"name": "x", "arguments": {}}], raw="<tool_call>")
        assert not KINDS[kind].right(case.example, wrong)


def test_voices_hear_themselves_and_not_plain_answers():
    source = Source(11)
    for _ in range(50):
        for name, voice in VOICES.items():
            assert voice.heard(spoken(source, name).answer["content"])
            assert not voice.heard(plain(source).answer["content"])


def test_every_family_fits_the_context():
    longest = max(len(text_of(e)) for e in corpus("long", 2000))
    assert longest < 8192
    assert "long_facts" in FAMILIES


def test_a_request_beyond_the_tools_is_refused_and_one_within_is_served():
    source = Source(12)
    called = refused = 0
    for _ in range(150):
        example = tools.turns(source)
        names = {t["function"]["name"] for t in example.tools}
        for message in example.messages:
            for call in message.get("tool_calls", []):
                assert call["function"]["name"] in names
                called += 1
            refused += message["content"] == tools.NO_TOOL
    # Neither answer may be the better guess.
    assert 0.8 < called / refused < 1.25


def test_requests_that_almost_fit_share_a_word_but_not_the_deed():
    source = Source(13)
    for _ in range(100):
        tool = tools._made_up(source)
        near = tools._near(source, tool)
        (verb, *_, noun), (verb2, *_, noun2) = (t.about[:-1].split() for t in (tool, near))
        assert (verb == verb2) != (noun == noun2)
