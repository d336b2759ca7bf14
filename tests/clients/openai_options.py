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
    "prediction": ([None, {"type": "content", "content": "x"}], [{"type": "image"}]),
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
    "best_of": ([1, 2], [0]),
    "echo": ([True, False], []),
    "logprobs": ([None, 0, 5], [30]),
    "max_tokens": ([10, 0], [-2]),
    "suffix": ([None, ""], ["end"]),
}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
CUSTOM = {
    "type": "custom",
    "name": "x",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'},
}
NAMESPACE = {"type": "namespace", "name": "n", "description": "", "tools": [FUNCTION]}
RESPONSES = {
    **{name: CHAT[name] for name in ("metadata", "moderation", "parallel_tool_calls", "user")},
    **{name: CHAT[name] for name in ("prompt_cache_key", "prompt_cache_options", "service_tier")},
    **{name: CHAT[name] for name in ("prompt_cache_retention", "safety_identifier", "stream")},
    **{name: CHAT[name] for name in ("temperature", "top_p")},
    "access_programs": ([], [{"cyber": "standard"}]),
    "background": ([True, False], []),
    "background_options": ([{"completion_window": "soonest"}], [{"completion_window": "2h"}]),
    "context_management": ([[]], [[{"type": "compaction"}]]),
    "conversation": ([None], [3]),
    "image": ([], [{"context_compression": "auto"}]),
    "include": (
        [["message.output_text.logprobs"], ["reasoning.encrypted_content"]],
        [["everything"]],
    ),
    "instructions": (["Be kind."], []),
    "max_output_tokens": ([8], [0]),
    "max_tool_calls": ([3], []),
    "previous_response_id": ([None], []),
    "prompt": ([None], [{"id": "pmpt_1"}]),
    "reasoning": ([{"effort": "low"}, {"summary": "auto"}], [{"effort": "x"}, {"mode": "pro"}]),
    "store": ([True, False], []),
    "stream_options": ([{"include_obfuscation": False}], [{"include_obfuscation": True}]),
    "text": ([{"format": {"type": "json_object"}}, {"verbosity": "medium"}], [{"x": 1}]),
    "tool_choice": (["none", "auto"], ["required", {"type": "web_search_preview"}]),
    "tools": ([[FUNCTION], [CUSTOM], [NAMESPACE], [{"type": "web_search"}]], [[{"type": "x"}]]),
    "top_logprobs": ([0, 2], [30]),
    "truncation": (["auto", "disabled"], ["front"]),
}
OWN = {"messages", "model", "prompt", "extra_headers", "extra_query", "extra_body", "timeout"}


def try_all(client: openai.OpenAI, model: str) -> int:
    """Send every option; how many values were tried."""
    count = 0
    for create, options, given in (
        (client.chat.completions.create, CHAT, {"messages": ASK}),
        (client.completions.create, TEXT, {"prompt": "The tide"}),
        (client.responses.create, RESPONSES, {"input": "The tide"}),
    ):
        unknown = set(inspect.signature(create).parameters) - OWN - set(options) - set(given)
        assert not unknown, f"new options of the client: {unknown}"
        limit = "max_output_tokens" if options is RESPONSES else "max_tokens"
        for name, (good, bad) in options.items():
            for value in good:
                asked = {limit: 8} if name != "max_completion_tokens" else {}
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
