"""Published chat templates render as in transformers, or are rejected for a reason listed here.

The templates are shared data, which a fresh clone lacks. Small templates of our own cover the same
features in `test_template.py`, `test_abilities.py` and `test_conversation.py`.
"""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.shared_data import PUBLISHED_TEMPLATES
from helpers.tiny_text import tokenizer_json
from transformers.utils.chat_template_utils import render_jinja_template

from tidemill.base.errors import TidemillError
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.grammar.schema import prepared
from tidemill.text.answering import ChatSide
from tidemill.text.prompt import render_prompt
from tidemill.text.prompt_options import PromptOptions
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer
from tidemill.text.tools import tool_use

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather <now> & later, é",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "the city"},
                "days": {"type": "integer"},
                "how": {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}},
            },
            "required": ["city"],
        },
    },
}
STOP: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "stop_mill",
        "description": "Stop.",
        "parameters": {"type": "object", "properties": {}},
    },
}
TOOLS = {"tools": [WEATHER, STOP]}
Messages = list[dict[str, Any]]


def user(content: Any = "How high is the tide?") -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: Any = "Be terse.") -> dict[str, Any]:
    return {"role": "system", "content": content}


def answer(content: Any = "Quite high.", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def calls(*arguments: dict[str, Any], name: str = "get_weather", first: int = 0) -> dict[str, Any]:
    functions = [{"name": name, "arguments": json.dumps(a, ensure_ascii=False)} for a in arguments]
    ids = [f"call0000{first + place}" for place in range(len(functions))]
    listed = [
        {"id": i, "type": "function", "function": f} for i, f in zip(ids, functions, strict=True)
    ]
    return {"tool_calls": listed}


def result(content: Any = "Sunny <now>", place: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call0000{place}", "content": content}


PARTS = [{"type": "text", "text": text} for text in ("Part one.", "Part two.")]
OSLO = {"city": "Łódź", "days": 3}
NESTED = {
    "city": 'A "q" \\ \n<x> {{ y }}',
    "how": {"unit": "C", "deep": [1, 2.5, None, True, {"k": "é"}]},
}
CONVERSATIONS: dict[str, tuple[Messages, dict[str, Any]]] = {
    "plain": ([user()], {}),
    "system": ([system(), user()], {}),
    "turns": ([system(), user(), answer(), user("And now?"), answer("Low."), user("Why?")], {}),
    "unicode": (
        [system("Grüße <&> 'x' \"y\""), user("日本語 🌊 <b>&amp;</b> \\n {{ x }} {% y %}")],
        {},
    ),
    "no generation prompt": ([user(), answer()], {"add_generation_prompt": False}),
    "continued": ([user(), answer("It is e")], {"continue_final_message": True}),
    "system in the middle": ([user(), answer(), system("Now be kind."), user("And now?")], {}),
    "two users": ([user(), user("And now?")], {}),
    "parts": ([system(), user(PARTS)], {}),
    "parts of the system": ([system(PARTS), user()], {}),
    "parts of an answer": ([user(), answer(PARTS), user("And now?")], {}),
    "whitespace": ([system("  Be terse.\n\n"), user("\n  How high?  \n")], {}),
    "an answer first": ([answer("Hello!"), user()], {}),
    "an empty answer": ([user(), answer(""), user("And now?")], {}),
    "an answer last": ([user(), answer()], {}),
    "marks of thinking": (
        [user(), answer("<think>\nLet me think.\n</think>\n\nHigh."), user("And now?")],
        {},
    ),
    "marks in a continued answer": (
        [user(), answer("<think>\nhm\n</think>\n\nIt is")],
        {"continue_final_message": True},
    ),
    "thinking of a continued answer": (
        [user(), answer("It is ", reasoning_content="Let me think.")],
        {"continue_final_message": True},
    ),
    "developer": ([{"role": "developer", "content": "Be terse."}, user()], {}),
    "thinking": ([user(), answer(reasoning_content="Let me think."), user("And now?")], {}),
    "documents": (
        [user("Which?")],
        {"documents": [{"title": "Tides", "text": "Two a day."}, {"title": "é", "text": "<&>"}]},
    ),
    "thinking on": ([user()], {"switch": True}),
    "thinking off": ([user()], {"switch": False}),
    "tools": ([user()], TOOLS),
    "tools, system": ([system(), user()], TOOLS),
    "short tool": ([user()], {"tools": [{"type": "function", "function": {"name": "stop_mill"}}]}),
    "call": ([user(), answer(None, **calls(OSLO)), result()], TOOLS),
    "call, answer": (
        [system(), user(), answer(None, **calls(OSLO)), result(), answer(), user("And now?")],
        TOOLS,
    ),
    "parallel calls": (
        [
            user(),
            answer(None, **calls(OSLO, {"city": "Rome"})),
            result("Warm", 1),
            result("Cold", 0),
        ],
        TOOLS,
    ),
    "nested arguments": (
        [user(), answer("", **calls(NESTED)), result('{"t": 1, "u": "é"}')],
        TOOLS,
    ),
    "no arguments": ([user(), answer(None, **calls({}, name="stop_mill")), result("done")], TOOLS),
    "content and call": ([user(), answer("I will look.", **calls(OSLO)), result()], TOOLS),
    "thinking and call": (
        [user(), answer("", reasoning_content="I should look.", **calls(OSLO)), result()],
        TOOLS,
    ),
    "two steps": (
        [
            user(),
            answer(None, **calls(OSLO)),
            result("Cold", 0),
            answer(None, **calls({"city": "Rome"}, first=1)),
            result("Warm", 1),
        ],
        TOOLS,
    ),
    "parts of a result": ([user(), answer(None, **calls(OSLO)), result(PARTS)], TOOLS),
    "kinds of numbers": (
        [user(), answer(None, **calls({"a": 10**20, "b": 1e22, "c": -0.5, "d": True})), result()],
        TOOLS,
    ),
    "thinking in every step": (
        [
            user(),
            answer(None, reasoning_content="I should look.", **calls(OSLO)),
            result("Cold", 0),
            answer("More.", reasoning_content="Again.", **calls({"city": "Rome"}, first=1)),
            result("Warm", 1),
            answer("Both.", reasoning_content="Enough."),
            user("And now?"),
        ],
        TOOLS,
    ),
    "continued beside tools": (
        [user(), answer("It is")],
        {"continue_final_message": True, **TOOLS},
    ),
    "calls without tools": ([user(), answer(None, **calls(OSLO)), result()], {}),
}
WITH_TOOLS = {name for name, (_, options) in CONVERSATIONS.items() if "tools" in options}

# What transformers renders with something left out (promise 2), by what that is: the templates, the
# conversations and the field that the error names.
_MIDDLE = ("MiniMax-M2", "NVIDIA-Nemotron-Nano-v2", "Reka-Edge", "HuggingFaceTB-SmolLM3-3B")
DROPS: list[tuple[tuple[str, ...], set[str], str]] = [
    ((*_MIDDLE, "openai-gpt-oss-120b"), {"system in the middle"}, "messages[2]"),
    (("HuggingFaceTB-SmolLM3-3B", "deepseek-ai-DeepSeek-V3.1"), WITH_TOOLS, "tools"),
    (("HuggingFaceTB-SmolLM3-3B",), {"calls without tools"}, "messages[1].tool_calls"),
    (
        ("GigaChat3.1-10B-A1.8B", "openai-gpt-oss-120b"),
        {"parallel calls"},
        "messages[1].tool_calls[1]",
    ),
]
READ_DOCUMENTS = {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", "ibm-granite-granite-4.0"}
# What transformers rejects: tools without description or parameters where the template asks for
# them, and what `map` returns given to `tojson` (which llama.cpp, for which that template was
# written, takes).
_SHORT = ("Apertus-8B-Instruct", "ByteDance-Seed-OSS", "meetkai-functionary-medium-v3.1")
_SHORT += ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "muse-glimmer", "openai-gpt-oss-120b")
RENDERED_HERE_ALONE = {
    "llama-cpp-deepseek-r1": WITH_TOOLS,
    **{name: {"short tool"} for name in _SHORT},
}


def rejected(template: str, conversation: str) -> str | None:
    """The field for which a conversation is rejected that transformers renders."""
    if conversation == "documents" and template not in READ_DOCUMENTS:
        return "documents"
    return next(
        (
            param
            for templates, conversations, param in DROPS
            if template in templates and conversation in conversations
        ),
        None,
    )


def theirs(source: str, messages: Messages, options: dict[str, Any]) -> str | None:
    """What transformers makes of a conversation in the form its documentation asks for."""
    messages = copy.deepcopy(messages)
    order = {}
    for message in messages:
        message["content"] = message["content"] or ""
        if "reasoning_content" in message:
            message["reasoning"] = message["reasoning_content"]
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            order[call["id"]] = len(order)
    if len([m for m in messages if m["role"] == "tool"]) == 2 and len(messages) == 4:
        messages[2:] = sorted(messages[2:], key=lambda m: order[m["tool_call_id"]])
    options = dict(options)
    continued = options.get("continue_final_message", False)
    options.setdefault("add_generation_prompt", not continued)
    try:
        (text,), _ = render_jinja_template(
            conversations=[messages], chat_template=source, **options, **SPECIAL
        )
    except Exception:  # whatever a template raises
        return None
    return text


def joined(content: Any) -> Any:
    return "".join(p["text"] for p in content) if isinstance(content, list) else content


def canonical(source: str, messages: Messages, options: dict[str, Any]) -> str | None:
    """The same, with contents as text where the template does not know lists of parts, and the
    role `system` where it does not know `developer`."""
    text = theirs(source, messages, options)
    if any(isinstance(message["content"], list) for message in messages):
        printed = text is not None and text.replace("'", '"').count('"Part two."')
        if text is None or "Part two." not in text or printed:
            return theirs(
                source, [{**m, "content": joined(m["content"])} for m in messages], options
            )
    if messages[0]["role"] == "developer":
        known = "developer" in source and text is not None and "terse" in text
        return text if known else theirs(source, [system(), *messages[1:]], options)
    return text


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer(TokenizerData(tokenizer_json=tokenizer_json(), special=SPECIAL))


@pytest.mark.skipif(
    not PUBLISHED_TEMPLATES, reason="shared data is absent: published chat templates"
)
@pytest.mark.parametrize("file", PUBLISHED_TEMPLATES or [Path("none")], ids=lambda file: file.stem)
def test_renderings_equal_transformers(file: Path) -> None:
    source, name = file.read_text(), file.stem
    template = ChatTemplate(source, SPECIAL)
    side = ChatSide.of(tokenizer(), template, prepared)
    differences = []
    for key, (messages, given) in CONVERSATIONS.items():
        options = dict(given)
        if "switch" in options:
            switch = side.abilities.switch
            value = options.pop("switch")
            if switch is not None:
                options[switch] = value
        wanted = canonical(source, messages, options)
        use = tool_use(options.pop("tools", None), None, None)
        prompt = {k: options.pop(k) for k in list(options) if k in PromptOptions.__slots__}
        try:
            ours = render_prompt(
                template, side, messages, PromptOptions(**prompt, kwargs=options), use
            )
        except TidemillError as error:
            expected = rejected(name, key)
            if error.param != expected if wanted is not None else expected is not None:
                differences.append((key, f"rejected: {error.message}", expected))
            continue
        alone = wanted is None and key in RENDERED_HERE_ALONE.get(name, ())
        if rejected(name, key) is not None or (ours != wanted and not alone):
            differences.append((key, ours, wanted))
    assert not differences, differences
