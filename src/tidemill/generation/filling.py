"""Prompts whose output fills a gap."""

from __future__ import annotations

from dataclasses import replace

from tidemill.base.errors import unsupported
from tidemill.contract.resolve import check_prompt
from tidemill.generation.encoding import check_ids, encode_text
from tidemill.generation.pace import Pace
from tidemill.generation.request import Gap, GenerateRequest, Model, Parts, Source
from tidemill.generation.wording import joined
from tidemill.text.fill_middle import FillMarks, fill_marks


async def gap_prompts(
    model: Model, request: GenerateRequest, gap: Gap, pace: Pace
) -> tuple[list[tuple[int, ...]], GenerateRequest]:
    """Token ids of a request's prompts with what follows their gap, and the request with the tokens
    that end such an output.

    Raises:
        TidemillError: UNSUPPORTED where the vocabulary has no marks for it; BAD_REQUEST naming the
            field.
    """
    marks = fill_marks(model.tokenizer)
    if marks is None:
        raise unsupported(
            name := request.names.suffix,
            f"{name}: the model {model.info.model!r} cannot fill in the middle: its vocabulary has "
            "none of the known marks for it (such as <|fim_middle|>)",
        )
    suffix = await encode_text(model, gap.suffix, request.names.suffix, pace, add_special=False)
    before = await _files(model, marks, gap, pace)
    begun = await encode_text(model, gap.begun, request.names.prompt, pace, add_special=False)
    prompts = []
    for source, name in zip(
        request.prompts, request.names.numbered(request.num_prompts), strict=True
    ):
        prefix = await _prefix(model, source, name, pace)
        ids = (*marks.prompt(prefix, suffix, before=before), *begun)
        check_prompt(len(ids), model.info.max_model_len, param=name)
        prompts.append(ids)
    given = request.sampling.stop_token_ids
    ends = () if request.sampling.ignore_eos else marks.ends
    stops = (*given, *(token for token in ends if token not in given))
    return prompts, replace(
        request, sampling=request.sampling.with_values({"stop_token_ids": stops})
    )


async def _prefix(model: Model, source: Source, param: str, pace: Pace) -> tuple[int, ...]:
    if isinstance(source, str):
        return await encode_text(model, source, param, pace, add_special=False)
    if isinstance(source, Parts):
        source = await joined(model, source, param, pace, add_special=False)
    check_prompt(max(1, len(source)), model.info.max_model_len, param=param)
    if source:
        await check_ids(source, model.info.vocab_size, param, pace)
    return tuple(source)


async def _files(model: Model, marks: FillMarks, gap: Gap, pace: Pace) -> tuple[int, ...]:
    found: list[int] = []
    for name, text in gap.files:
        head = f"{name}\n" if marks.file is not None else ""
        whole = f"{head}{text}\n"
        ids = await encode_text(model, whole, "input_extra", pace, add_special=False)
        found += (*(() if marks.file is None else (marks.file,)), *ids)
    return tuple(found)
