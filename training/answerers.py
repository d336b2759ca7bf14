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
from training.render import answer_text, prompt_text

Answerer = Callable[[list[Example]], list[Answer]]
LIMIT = 320  # tokens an answer may have


class Transformers:
    """Greedy answers of a Hugging Face folder in float32, in left-padded batches."""

    def __init__(self, folder: Path, adapter: Path | None = None, size: int = 25) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.size = size
        if adapter:
            merge_lora(self.model, adapter)

    @torch.no_grad()
    def __call__(self, examples: list[Example]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        order = sorted(range(len(examples)), key=lambda i: len(prompt_text(examples[i])))
        for at in range(0, len(order), self.size):
            chosen = order[at : at + self.size]
            texts = [prompt_text(examples[i]) for i in chosen]
            batch = self.tokenizer(texts, return_tensors="pt", padding=True)
            output = self.model.generate(
                **batch, max_new_tokens=LIMIT, do_sample=False,
                eos_token_id=self.tokenizer.eos_token_id, pad_token_id=0,
            )  # fmt: skip
            for i, row in zip(chosen, output[:, batch.input_ids.shape[1] :], strict=True):
                ids = row.tolist()
                end = self.tokenizer.eos_token_id
                finish = "stop" if end in ids else "length"
                ids = ids[: ids.index(end)] if end in ids else ids
                answers[i] = parse(self.tokenizer.decode(ids), finish)
        return [answers[i] for i in range(len(examples))]

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


def merge_lora(model: Any, folder: Path) -> None:
    """Add a PEFT LoRA adapter's product to the weights of a transformers model."""
    from safetensors.torch import load_file

    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    scale = config["lora_alpha"] / config["r"]
    for name, down in tensors.items():
        if name.endswith("lora_A.weight"):
            up = tensors[name.replace("lora_A", "lora_B")].float()
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            model.get_submodule(module).weight.data += scale * (up @ down.float())


class Server:
    """Greedy answers of an OpenAI-compatible server, through the openai client."""

    def __init__(self, base_url: str, model: str | None = None, workers: int = 8) -> None:
        from openai import OpenAI

        self.client = OpenAI(base_url=base_url, api_key="none", timeout=120)
        self.model = model or self.client.models.list().data[0].id
        self.workers = workers

    def one(self, example: Example) -> Answer:
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
        return Answer(content.strip(), calls, thought, choice.finish_reason, raw)

    def __call__(self, examples: list[Example]) -> list[Answer]:
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(self.one, examples))
