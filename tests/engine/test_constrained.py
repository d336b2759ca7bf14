"""Programs enforced by the engine, with a real model: whatever it would rather say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import jsonschema
import msgspec
import pytest
from helpers.constrained import Answer, Brook, schema

from tidemill.contract.program import Forced, FreeText, Grammar
from tidemill.grammar.repetition import LIMIT

PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["first_name", "age"],
    "additionalProperties": False,
}
PERSON_PHASE = schema(json.dumps(PERSON))


@pytest.fixture(scope="module")
def brook() -> Iterator[Brook]:
    engine = Brook()
    yield engine
    engine.close()


def valid(brook: Brook, answer: Answer) -> None:
    assert answer.finish == "stop", answer
    jsonschema.validate(json.loads(brook.text(answer)), PERSON)


def test_the_document_is_valid_and_ends_by_itself(brook: Brook) -> None:
    (answer,) = brook.ask("Tell me about Anna.", PERSON_PHASE)
    valid(brook, answer)
    assert answer.stop_token is None, "nothing can follow, so no end token is sampled"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_jumping_ahead_changes_nothing(brook: Brook, temperature: float) -> None:
    walking = Brook(jump_ahead=False)
    try:
        for seed in range(4):
            how = {"temperature": temperature, "seed": seed, "n": 2}
            ahead = brook.ask("Who is Anna?", PERSON_PHASE, **how)
            steps = walking.ask("Who is Anna?", PERSON_PHASE, **how)
            assert [a.tokens for a in ahead] == [a.tokens for a in steps]
            assert sum(a.messages for a in ahead) < sum(a.messages for a in steps)
    finally:
        walking.close()


def test_each_token_has_its_logprob(brook: Brook) -> None:
    (plain,) = brook.ask("Who is Anna?", PERSON_PHASE)
    (told,) = brook.ask("Who is Anna?", PERSON_PHASE, logprobs=2)
    assert told.tokens == plain.tokens and len(told.logprobs) == len(told.tokens)


def test_penalties_bias_and_seeds(brook: Brook) -> None:
    for seed in range(3):
        how = {"temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": 1.0}
        for answer in brook.ask("Anna", PERSON_PHASE, seed=seed, n=3, **how):
            valid(brook, answer)


def test_a_token_budget_is_the_only_way_to_half_a_document(brook: Brook) -> None:
    (whole,) = brook.ask("Who is Anna?", PERSON_PHASE)
    for budget in (1, 2, 3, 7, len(whole.tokens) - 1):
        (cut,) = brook.ask("Who is Anna?", PERSON_PHASE, max_tokens=budget)
        assert cut.finish == "length" and cut.tokens == whole.tokens[:budget]
    (just,) = brook.ask("Who is Anna?", PERSON_PHASE, max_tokens=len(whole.tokens))
    assert just.finish == "stop" and just.tokens == whole.tokens


@pytest.mark.parametrize(
    ("kind", "source", "pattern"),
    [
        ("regex", r"[a-c]{3}-\d{2}", r"[a-c]{3}-\d{2}"),
        ("choice", '["yes", "no", "perhaps"]', "yes|no|perhaps"),
        ("lark", 'start: "a"+ "!"', "a+!"),
        ("gbnf", 'root ::= "x" [0-9]+ "y"', "x[0-9]+y"),
        ("json_object", "", r"\{[\s\S]*\}"),
    ],
)
def test_other_languages(brook: Brook, kind: str, source: str, pattern: str) -> None:
    for answer in brook.ask("Go on.", Grammar(kind, source), temperature=1.0, n=4, max_tokens=300):
        assert answer.finish == "length" or re.fullmatch(pattern, brook.text(answer)), answer


def test_thinking_first(brook: Brook) -> None:
    opening, closing = brook.ids("<think>"), brook.ids("</think>")
    think = FreeText(until=(closing,), opened_by=opening)
    (answer,) = brook.ask("What is 4 plus 5?", think, PERSON_PHASE)
    jsonschema.validate(json.loads(brook.text(answer).split("</think>")[-1]), PERSON)
    # Forced into thinking, and out of it by the budget.
    limited = FreeText(until=(closing,), budget=5, then=(*brook.ids("\n"), *closing))
    (answer,) = brook.ask("What is 4 plus 5?", Forced(opening), limited, PERSON_PHASE)
    text = brook.text(answer)
    assert text.startswith("<think>") and text.count("</think>") == 1
    assert len(brook.ids(text.split("</think>")[0])) <= 1 + 5 + 2
    valid(brook, _after(brook, answer))


def _after(brook: Brook, answer: Answer) -> Answer:
    at = answer.tokens.index(brook.ids("</think>")[0])
    return Answer(answer.tokens[at + 1 :], answer.finish)


def test_no_end_before_the_last_phase(brook: Brook) -> None:
    bound = FreeText(budget=40)
    (answer,) = brook.ask("Say hello.", bound, Grammar("choice", '["END"]'))
    assert answer.finish == "stop" and brook.text(answer).endswith("END")
    assert len(answer.tokens) == 40 + len(brook.ids("END"))


def test_preempted_streams_and_two_plans_in_flight() -> None:
    small = {"kv_memory": 36 * 32 * 768 * 4, "max_num_seqs": 8}
    tight, wide = Brook(depth=2, **small), Brook()
    try:
        requests = [
            wide.request(f"r{i}", "Who is " + "x" * i, (PERSON_PHASE,), temperature=1.0, seed=i)
            for i in range(8)
        ]
        together = tight.run(requests)
        alone = [wide.run([r])[0] for r in requests]
        assert [a[0].tokens for a in together] == [a[0].tokens for a in alone]
    finally:
        tight.close()
        wide.close()


def test_a_request_resumes_where_it_stood(brook: Brook) -> None:
    how = {"temperature": 1.0, "seed": 3, "n": 2}
    whole = brook.ask("Who is Anna?", PERSON_PHASE, **how)
    for kept in (0, 1, 4, 9):
        request = brook.request("again", "Who is Anna?", (PERSON_PHASE,), **how)
        resume = tuple(tuple(a.tokens[:kept]) for a in whole)
        request = msgspec.structs.replace(request, resume=resume if kept else ())
        (again,) = brook.run([request])
        assert [a.tokens for a in again] == [a.tokens[kept:] for a in whole]
    done = msgspec.structs.replace(request, resume=tuple(tuple(a.tokens) for a in whole))
    assert all(a.finish == "stop" and not a.tokens for a in brook.run([done])[0])


@pytest.mark.parametrize(
    ("source", "param"),
    [
        ('{"not": {}}', "response_format.not"),
        ('{"type": "object", "properties": {"a": {"if": {}}}}', "response_format.properties.a.if"),
        ('{"items": [{"uniqueItems": true}]}', "response_format.items[0].uniqueItems"),
        ('{"format": "phone"}', "response_format.format"),
        ('{"pattern": "(?<=a)b"}', "response_format.pattern"),
        ('{"foo": 1}', "response_format.foo"),
        ('{"$ref": "#/$defs/a"}', "response_format.$ref"),
        ('{"$ref": "http://example.com/a"}', "response_format.$ref"),
        ('{"multipleOf": 0.1}', "response_format.multipleOf"),
        ("false", "response_format"),
        ("[1]", "response_format"),
        ("{", "response_format"),
        ('{"minimum": 3, "maximum": 1, "type": "integer"}', "response_format"),
        ('{"oneOf": [{"type": "string"}, {"minLength": 2}]}', "response_format.oneOf"),
        ('{"const": -9223372036854775808}', "response_format.const"),
        ('{"type": "integer", "minimum": -1e30, "maximum": -1e20}', "response_format.minimum"),
    ],
)
def test_what_cannot_be_honoured_is_named(brook: Brook, source: str, param: str) -> None:
    answers = brook.ask("x", schema(source), n=2)
    for answer in answers:
        assert answer.finish == "error" and answer.error is not None
        assert answer.error.kind == "bad_request" and answer.error.param == param, answer.error
        assert not answer.tokens


def test_a_cancel_while_compiling_leaves_nothing(brook: Brook) -> None:
    many = json.dumps({"enum": [f"value {i}" for i in range(9000)]})
    request = brook.request("gone", "x", (schema(many),))
    brook.send([request])
    brook.cancel("gone")
    [[answer]] = brook.wait([request], 30)
    assert answer.finish == "cancelled" and not answer.tokens
    valid(brook, brook.ask("Who is Anna?", PERSON_PHASE)[0])
    stats = brook.stats()
    assert stats.blocks_used == stats.running == stats.queued == stats.tenants == 0


def test_an_answer_that_repeats_itself_ends_by_length(brook: Brook) -> None:
    """Without max_tokens; brook fills a list with one sentence to the context's end."""
    strings = schema('{"type": "array", "items": {"type": "string"}}')
    prompt = "Who is Alice? JSON please"
    (free,) = brook.ask(prompt, strings, max_tokens=None)
    assert free.finish == "length" and LIMIT <= len(free.tokens) < LIMIT + 200
    (bounded,) = brook.ask(prompt, strings, max_tokens=LIMIT + 300)
    assert bounded.finish == "length" and len(bounded.tokens) == LIMIT + 300
    assert bounded.tokens[: len(free.tokens)] == free.tokens
