"""Every option of OpenAI's own client, with values that its documentation gives.

Each is answered, or it is a 400 that names the option.
"""

import inspect

import openai

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
# option: values that are answered, values that are refused by name
CHAT = {
    "audio": ([None], [{"voice": "ash", "format": "wav"}]),
    "frequency_penalty": ([0, 0.5], [3]),
    "function_call": ([None, "none"], ["auto"]),
    "functions": ([[]], [[{"name": "f"}]]),
    "logit_bias": ([{}, {"50": -100}], []),
    "logprobs": ([True, False], []),
    "max_completion_tokens": ([10, None], [0]),
    "max_tokens": ([10, -1], [0]),
    "metadata": ([{"a": "b"}], []),
    "modalities": ([["text"]], [["text", "audio"]]),
    "moderation": ([None], [{"model": "omni-moderation-latest"}]),
    "n": ([1, 2], [0]),
    "parallel_tool_calls": ([True, False], []),
    "prediction": ([None], [{"type": "content", "content": "x"}]),
    "presence_penalty": ([0, 0.5], [3]),
    "prompt_cache_key": (["k"], []),
    "prompt_cache_options": ([{"mode": "implicit", "ttl": "30m"}], []),
    "prompt_cache_retention": (["in_memory", "24h"], []),
    "reasoning_effort": ([None, "none", "minimal", "low", "medium", "high", "xhigh", "max"], ["y"]),
    "response_format": ([{"type": "text"}, {"type": "json_object"}], [{"type": "xml"}]),
    "safety_identifier": (["u"], []),
    "seed": ([0, -1, 2**63 - 1], []),
    "service_tier": (["auto", "default", "flex", "priority"], ["scale"]),
    "stop": ([None, "x", ["x", "y"], []], [["x"] * 17]),
    "store": ([False, None], [True]),
    "stream": ([False], []),
    "stream_options": ([None, {"include_usage": False}], [{"include_usage": True}]),
    "temperature": ([0, 1, 2], [-1]),
    "tool_choice": (["none", "auto"], ["required"]),
    "tools": ([[TOOL], []], [[{"type": "custom", "custom": {"name": "x"}}]]),
    "top_logprobs": ([None], [2]),
    "top_p": ([1, 0.5, 0], [2]),
    "user": (["u"], []),
    "verbosity": (["medium"], ["low"]),
    "web_search_options": ([None], [{}]),
}
TEXT = {
    **{name: CHAT[name] for name in ("frequency_penalty", "logit_bias", "n", "presence_penalty")},
    **{name: CHAT[name] for name in ("seed", "stop", "stream", "stream_options", "temperature")},
    **{name: CHAT[name] for name in ("top_p", "user")},
    "best_of": ([1], [2]),
    "echo": ([True, False], []),
    "logprobs": ([None, 0, 5], [30]),
    "max_tokens": ([10, 0], [-2]),
    "suffix": ([None, ""], ["end"]),
}
OWN = {"messages", "model", "prompt", "extra_headers", "extra_query", "extra_body", "timeout"}


def try_all(client: openai.OpenAI, model: str) -> int:
    """Send every option; how many values were tried."""
    count = 0
    for create, options, given in (
        (client.chat.completions.create, CHAT, {"messages": ASK}),
        (client.completions.create, TEXT, {"prompt": "The tide"}),
    ):
        unknown = set(inspect.signature(create).parameters) - OWN - set(options)
        assert not unknown, f"new options of the client: {unknown}"
        for name, (good, bad) in options.items():
            for value in good:
                asked = {"max_tokens": 8} if name != "max_completion_tokens" else {}
                create(**{"model": model, **given, **asked, name: value})
            for value in bad:
                try:
                    create(**{"model": model, **given, name: value})
                except openai.BadRequestError as error:
                    assert error.param.startswith(name) and name in error.message, error
                else:
                    raise AssertionError(f"{name}: {value} was taken")
            count += len(good) + len(bad)
    return count
