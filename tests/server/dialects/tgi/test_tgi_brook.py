"""TGI's dialect with a real engine: the same tokens as the other dialects get."""

from __future__ import annotations

import re

import msgspec
from helpers.real_server import RealServer


def test_tgi_answers_as_completions_do() -> None:
    with RealServer() as server:
        prompt, asked = "The capital of France is", {"max_new_tokens": 12, "details": True}
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 0}
        other = server.http.post("/v1/completions", json=body).json()["choices"][0]
        mine = server.http.post("/generate", json={"inputs": prompt, "parameters": asked}).json()
        assert mine["generated_text"] == other["text"]
        logprobs = [token["logprob"] for token in mine["details"]["tokens"]]
        assert logprobs == other["logprobs"]["token_logprobs"]
        grammar = {"type": "regex", "value": "[0-9]{3}"}
        body = {"inputs": prompt, "parameters": {"grammar": grammar}}
        lines = server.http.post("/generate_stream", json=body).text.splitlines()
        last = msgspec.json.decode([line for line in lines if line[:5] == "data:"][-1][5:])
        assert re.fullmatch("[0-9]{3}", last["generated_text"])
