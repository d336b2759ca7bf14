"""Who answers the evaluation's cases: transformers, or an OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from training.data.source import Example
from training.judge import Answer, parse
from training.render import NO_THOUGHT, answer_text, prompt_text, target_text

Answerer = Callable[[list[Example]], list[Answer]]
LIMIT = 320  # tokens an answer may have


class Transformers:
    """Greedy answers of a Hugging Face folder in float32, in left-padded batches."""

    def __init__(self, folder: Path, size: int = 25) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.size = size

    @torch.no_grad()
    def __call__(self, examples: list[Example]) -> list[Answer]:
        """The greedy answers.

        If greedy decoding writes the expected answer, one forward pass shows it; only where it
        does not is anything generated token by token.
        """
        answers = [Answer() for _ in examples]
        left = []
        for i, example in enumerate(examples):
            text = target_text(example).removesuffix("<|im_end|>")
            expected = parse(text.removeprefix(NO_THOUGHT))
            if self.agrees(example, expected):
                answers[i] = expected
            else:
                left.append(i)
        left.sort(key=lambda i: len(prompt_text(examples[i])))
        for at in range(0, len(left), self.size):
            chosen = left[at : at + self.size]
            found = self.generate([examples[i] for i in chosen])
            for i, answer in zip(chosen, found, strict=True):
                answers[i] = answer
        return answers

    def generate(self, examples: list[Example]) -> list[Answer]:
        """One left-padded batch, greedily; an answer far longer than expected is cut."""
        batch = self.tokenizer(
            [prompt_text(e) for e in examples], return_tensors="pt", padding=True
        )
        longest = max(len(self.tokenizer(target_text(e)).input_ids) for e in examples)
        end = self.tokenizer.eos_token_id
        output = self.model.generate(
            **batch, max_new_tokens=min(LIMIT, longest + 40), do_sample=False, eos_token_id=end,
            pad_token_id=self.tokenizer.pad_token_id,
        )  # fmt: skip
        answers = []
        for row in output[:, batch.input_ids.shape[1] :]:
            ids = row.tolist()
            finish = "stop" if end in ids else "length"
            ids = ids[: ids.index(end)] if end in ids else ids
            answers.append(parse(self.tokenizer.decode(ids), finish))
        return answers

    @torch.no_grad()
    def agrees(self, example: Example, answer: Answer) -> bool:
        """Whether greedy decoding here writes exactly ``answer``, token for token.

        One forward pass over prompt and answer: each token must be the argmax given the tokens
        before it, which is what generating one by one would check.
        """
        prompt = self.tokenizer(prompt_text(example)).input_ids
        end = "<|im_end|>" if answer.finish != "length" else ""
        ids = self.tokenizer(answer.raw + end).input_ids
        scores = self.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        return scores.argmax(-1).tolist() == ids


class Server:
    """Greedy answers of an OpenAI-compatible server, through the openai client."""

    def __init__(
        self, base_url: str, model: str | None = None, workers: int = 8, raw: bool = False
    ) -> None:
        from openai import OpenAI

        self.client = OpenAI(base_url=base_url, api_key="none", timeout=120)
        self.model = model or self.client.models.list().data[0].id
        self.workers = workers
        self.raw = raw
        self.refused = 0

    def completed(self, example: Example) -> Answer:
        """The answer through the completions endpoint, rendered and parsed here."""
        reply = self.client.completions.create(
            model=self.model, prompt=prompt_text(example), temperature=0, max_tokens=LIMIT
        )
        choice = reply.choices[0]
        return parse(choice.text, choice.finish_reason)

    def one(self, example: Example) -> Answer:
        """Through chat, or rendered here if the server says that it cannot (tools, say)."""
        from openai import BadRequestError

        if not self.raw:
            try:
                return self.chat(example)
            except BadRequestError:
                self.refused += 1
        return self.completed(example)

    def chat(self, example: Example) -> Answer:
        """The answer through chat completions, parsed by the server."""
        thinking = {"chat_template_kwargs": {"enable_thinking": example.thinking}}
        options: dict[str, Any] = {"tools": example.tools} if example.tools else {}
        reply = self.client.chat.completions.create(
            model=self.model, messages=example.prompt, temperature=0, max_tokens=LIMIT,  # type: ignore[arg-type]
            extra_body=thinking, **options,
        )  # fmt: skip
        choice = reply.choices[0]
        message = choice.message.model_dump()
        calls = []
        for call in message.get("tool_calls") or []:
            function = call["function"]
            try:
                arguments = json.loads(function["arguments"])
            except ValueError:
                arguments = None
            calls.append({"name": function["name"], "arguments": arguments})
        thought = message.get("reasoning_content") or message.get("reasoning") or ""
        raw = answer_text(message)
        if thought:
            raw = f"<think>\n{thought.strip()}\n</think>\n\n{raw}"
        content = message.get("content") or ""
        if "</think>" in content and not thought:
            return parse(content, choice.finish_reason)
        return Answer(content.strip(), calls, thought, choice.finish_reason, raw)

    def __call__(self, examples: list[Example]) -> list[Answer]:
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(self.one, examples))
