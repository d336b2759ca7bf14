"""The offline API on the bundled model."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import msgspec
import pytest

from tidemill import LLM, SamplingParams, TidemillError
from tidemill.offline.outputs import Completion

MESSAGES = [{"role": "user", "content": "Tell me a story about a boat."}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1, kv_memory=32 * 2**20) as loaded:
        yield loaded


def _greedy(**values: object) -> SamplingParams:
    return SamplingParams(temperature=0, **{"max_tokens": 24, "ignore_eos": True, **values})  # type: ignore[arg-type]


def test_prompts_in_every_form(llm: LLM) -> None:
    ids = llm.tokenizer.encode("The tide")
    by_text, by_ids = llm.generate(["The tide", ids], _greedy())
    assert by_text.text == by_ids.text and len(by_text.outputs[0].token_ids) == 24
    assert by_text.prompt_token_ids == tuple(ids)
    [alone] = llm.generate("The tide", _greedy())
    assert alone.text == by_text.text
    [alone] = llm.generate(ids, _greedy())
    assert alone.text == by_text.text
    assert alone.outputs[0].finish_reason == "length"
    assert alone.sampling.seed is not None


def test_parameters_per_prompt_and_choices(llm: LLM) -> None:
    first, second = llm.generate(
        ["The tide", "The tide"],
        [_greedy(max_tokens=3), SamplingParams(temperature=2, n=3, seed=1, max_tokens=9)],
    )
    assert len(first.outputs) == 1 and len(second.outputs) == 3
    assert len({o.text for o in second.outputs}) == 3
    again = llm.generate("The tide", SamplingParams(temperature=2, n=3, seed=1, max_tokens=9))
    assert [o.text for o in again[0].outputs] == [o.text for o in second.outputs]


def test_streams_equal_whole_answers(llm: LLM) -> None:
    params = SamplingParams(temperature=0.8, seed=4, max_tokens=60, stop=("the", "and"))
    [whole] = llm.chat(MESSAGES, params)
    assert "".join(llm.stream(MESSAGES, params)) == whole.text
    assert whole.outputs[0].stop_string in (None, "the", "and")
    assert "the" not in whole.text


def test_leaving_a_stream_stops_it(llm: LLM) -> None:
    stream = llm.stream("The tide", _greedy(max_tokens=3000))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    before = llm.stats.generated_tokens
    llm.generate("a", _greedy(max_tokens=1))
    assert llm.stats.generated_tokens - before < 500
    assert llm.stats.running <= 1


def test_stop_strings_cut_tokens_and_logprobs(llm: LLM) -> None:
    [free] = llm.generate("The tide", _greedy(logprobs=2))
    output = free.outputs[0]
    assert output.logprobs is not None and len(output.logprobs) == 24
    assert [entry.token_id for entry in output.logprobs] == output.token_ids
    stop = free.text[5:8]
    [cut] = llm.generate("The tide", _greedy(logprobs=2, stop=(stop,)))
    shown = cut.outputs[0]
    assert shown.text == free.text[: free.text.index(stop)]
    assert shown.finish_reason == "stop" and shown.stop_string == stop
    assert shown.logprobs is not None and len(shown.logprobs) == len(shown.token_ids) < 24


def test_logprobs_of_all_tokens(llm: LLM) -> None:
    [result] = llm.generate("The tide", _greedy(max_tokens=2, logprobs=-1))
    for entry in result.outputs[0].logprobs or ():
        ids, values = zip(*entry.top, strict=True)
        assert len(ids) == len(set(ids)) == llm.info.vocab_size
        assert list(values) == sorted(values, reverse=True) and values[0] == entry.logprob
        assert abs(sum(map(math.exp, values)) - 1) < 1e-4


def test_prompts_are_cut_where_that_is_asked(llm: LLM) -> None:
    tokens = llm.tokenizer.encode("The tide comes in at noon", add_special=False)
    for side, kept in (("left", tokens[-2:]), ("right", tokens[:2])):
        asked = {"truncate_prompt_tokens": 2, "truncation_side": side, "add_special_tokens": False}
        [result] = llm.generate("The tide comes in at noon", _greedy(max_tokens=1), **asked)
        assert list(result.prompt_token_ids) == kept
    messages = [{"role": "user", "content": "tide " * 5000}]
    [result] = llm.chat(messages, _greedy(max_tokens=1), truncate_prompt_tokens=-1)
    assert len(result.prompt_token_ids) == llm.info.max_model_len - 1
    for name, value in (
        ("truncate_prompt_tokens", 0), ("truncation_side", "up"), ("bad_words", "x"),
        ("add_special_tokens", 1),
    ):  # fmt: skip
        with pytest.raises(TidemillError) as caught:
            llm.generate("x", **{name: value})
        assert caught.value.param == name


def test_an_output_that_repeats_itself_ends(llm: LLM) -> None:
    rule = {"max_pattern_size": 1, "min_count": 4}
    bias = {llm.tokenizer.encode("a", add_special=False)[0]: 100.0}
    params = _greedy(logit_bias=bias, repetition_detection=rule, max_tokens=50)
    [result] = llm.generate("The tide", params)
    output = result.outputs[0]
    assert len(output.token_ids) == 4 and output.finish_reason == "length"


def test_prompt_logprobs(llm: LLM) -> None:
    [result] = llm.generate("The tide comes in", _greedy(max_tokens=1, prompt_logprobs=1))
    logprobs = result.prompt_logprobs
    assert logprobs is not None and len(logprobs) == len(result.prompt_token_ids)
    assert logprobs[0] is None and all(entry is not None for entry in logprobs[1:])


def test_many_conversations(llm: LLM) -> None:
    results = llm.chat([MESSAGES, [{"role": "user", "content": "Hello"}]], _greedy())
    assert len(results) == 2
    [alone] = llm.chat(MESSAGES, _greedy())
    assert alone.text == results[0].text


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ("", None, "prompt"),
        ([-1], None, "prompt"),
        ([10**6], None, "prompt"),
        ("a", SamplingParams(max_tokens=10**6), "max_tokens"),
        ("a", [SamplingParams()] * 2, "params"),
    ],
)
def test_bad_calls_name_the_field(llm: LLM, prompt: object, params: object, param: str) -> None:
    with pytest.raises(TidemillError) as caught:
        llm.generate(prompt, params)  # type: ignore[arg-type]
    assert caught.value.param == param
    assert llm.generate("a", _greedy(max_tokens=1))


def test_what_is_left_out_is_the_models(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "defaults", {"temperature": 0.25, "top_k": 7})
    short = SamplingParams(max_tokens=1)
    for params in (short, [short], SamplingParams(max_tokens=1, temperature=None)):
        applied = llm.generate("a", params)[0].sampling
        assert (applied.temperature, applied.top_k, applied.top_p) == (0.25, 7, 1.0)
    assert llm.chat(MESSAGES, short)[0].sampling.temperature == 0.25
    asked = SamplingParams(max_tokens=1, temperature=1.0, top_k=0)
    applied = llm.chat(MESSAGES, asked)[0].sampling
    assert (applied.temperature, applied.top_k) == (1.0, 0)


@pytest.mark.parametrize("option", ["temperature", "max_tokens", "max_new_tokens", "stop"])
def test_a_sampling_parameter_beside_the_parameters(llm: LLM, option: str) -> None:
    for method, first in ((llm.chat, MESSAGES), (llm.generate, "a"), (llm.stream, MESSAGES)):
        with pytest.raises(TidemillError, match=r"SamplingParams\(") as caught:
            method(first, **{option: 1})  # type: ignore[operator]
        assert caught.value.param == option


def test_representations_are_short(llm: LLM) -> None:
    import tidemill

    [result] = llm.generate("The tide " * 50, _greedy(max_tokens=40, ignore_eos=True))
    assert len(repr(result)) < 300 and "40 tokens" in repr(result)
    assert repr(SamplingParams(top_k=3)) == "SamplingParams(top_k=3)"
    assert repr(llm).startswith("LLM('brook', backend='native'")
    public = {name for name in dir(tidemill) if not name.startswith("__")}
    assert public == set(tidemill.__all__)


def test_bad_settings() -> None:
    with pytest.raises(TidemillError) as caught:
        LLM(qantize="q8_0")
    assert caught.value.param == "qantize"
    with pytest.raises(TidemillError) as caught:
        LLM("no/such/model/here")
    assert "no such file" in caught.value.message


def test_seeds_are_signed(llm: LLM) -> None:
    texts = [
        llm.generate("The", SamplingParams(temperature=1.5, seed=seed, max_tokens=16))[0].text
        for seed in (-1, -1, 1, -(2**63), 2**63 - 1)
    ]
    assert texts[0] == texts[1] and len(set(texts)) == 4


def test_beam_search_gives_its_best_outputs(llm: LLM) -> None:
    params = SamplingParams(beam_width=4, n=3, max_tokens=12, logprobs=0, length_penalty=0.0)
    [found] = llm.generate("The tide", params)
    assert len({o.text for o in found.outputs}) == 3
    sums = [sum(lp.logprob for lp in o.logprobs or ()) for o in found.outputs]
    assert sums == sorted(sums, reverse=True)
    [greedy] = llm.generate("The tide", _greedy(max_tokens=12, ignore_eos=False, logprobs=0))
    assert sums[0] >= sum(lp.logprob for lp in greedy.outputs[0].logprobs or ()) - 1e-4
    # What the model's makers recommend for sampling does not apply; a maximum is chosen.
    [unbounded] = llm.chat(MESSAGES, SamplingParams(beam_width=2))
    assert unbounded.outputs[0].finish_reason and unbounded.sampling.temperature == 1.0


def test_beam_search_under_a_grammar(llm: LLM) -> None:
    params = SamplingParams(beam_width=4, n=2, max_tokens=30)
    [found] = llm.generate("The sea is ", params, guided_regex="(deep|blue|wide) and (old|cold)")
    texts = [output.text for output in found.outputs]
    assert len({tuple(output.token_ids) for output in found.outputs}) == 2
    assert all(re.fullmatch("(deep|blue|wide) and (old|cold)", text) for text in texts)
    assert [output.finish_reason for output in found.outputs] == ["stop", "stop"]
    with pytest.raises(TidemillError, match="only 1 different") as caught:
        llm.generate("Yes? ", SamplingParams(beam_width=3, n=2, max_tokens=9), guided_regex="x")
    assert caught.value.param == "n"


def test_beams_end_at_stop_strings(llm: LLM) -> None:
    params = SamplingParams(beam_width=4, n=4, max_tokens=20, length_penalty=0.0, logprobs=0)
    [found] = llm.generate("The tide", msgspec.structs.replace(params, stop=(" the", ".")))
    stopped = [o for o in found.outputs if o.stop_string is not None]
    assert stopped
    for output in stopped:
        # The search ended the beam with the token that completes the stop string.
        assert output.finish_reason == "stop"
        written = llm.tokenizer.decode(output.token_ids)
        assert written.startswith(output.text + str(output.stop_string))
        before = llm.tokenizer.decode(output.token_ids[:-1])
        assert " the" not in before and "." not in before
    sums = [sum(lp.logprob for lp in o.logprobs or ()) for o in found.outputs]
    assert sums == sorted(sums, reverse=True)
    late = msgspec.structs.replace(params, stop=(" the", "."), min_tokens=12)
    assert all(len(o.token_ids) >= 12 for o in llm.generate("The tide", late)[0].outputs)


def test_best_of_gives_the_likeliest(llm: LLM) -> None:
    params = {"temperature": 1.5, "seed": 3, "max_tokens": 10, "ignore_eos": True}
    [every] = llm.generate("The tide", SamplingParams(**params, n=6, logprobs=0))

    def mean(output: Completion) -> float:
        assert output.logprobs is not None
        return sum(lp.logprob for lp in output.logprobs) / len(output.token_ids)

    best = sorted(every.outputs, key=mean, reverse=True)[:2]
    for logprobs in (None, 0):
        [found] = llm.generate(
            "The tide", SamplingParams(**params, n=2, best_of=6, logprobs=logprobs)
        )
        assert [o.text for o in found.outputs] == [o.text for o in best]
        assert [o.token_ids for o in found.outputs] == [o.token_ids for o in best]
        assert [o.index for o in found.outputs] == [0, 1]
        assert (found.outputs[0].logprobs is None) == (logprobs is None)
    with pytest.raises(TidemillError, match="known at the end"):
        llm.stream("The tide", SamplingParams(best_of=2))
