# ruff: noqa: RUF001  (DeepSeek spells its marks with a full-width bar)
"""The table of formats, and their detection from a chat template's source.

Each format follows the family's published chat template (named in docs/tool-formats.md).
"""

from __future__ import annotations

from dataclasses import replace

from tidemill.text.parsers.format import (
    Format,
    Gaps,
    JsonCall,
    Kind,
    NamedJson,
    PythonCalls,
    TaggedCall,
    ThinkMarks,
)

THINK = ThinkMarks("<think>", "</think>")

# Marks of thinking by name; see `_THINK_SIGNS` for detection.
THINKING: dict[str, ThinkMarks] = {
    "think": THINK,
    "magistral": ThinkMarks("[THINK]", "[/THINK]", ""),
    "cohere": ThinkMarks("<|START_THINKING|>", "<|END_THINKING|>", ""),
    "seed": ThinkMarks("<seed:think>", "</seed:think>", ""),
    "granite": ThinkMarks("Here is my thought process:", "Here is my response:"),
    "hunyuan": ThinkMarks("<think>\n", "\n</think>\n", "\n"),
    "hunyuan3": ThinkMarks("<think:opensource>", "</think:opensource>", ""),
    "gemma4": ThinkMarks("<|channel>thought", "<channel|>", ""),
    "kimi_k3": ThinkMarks("<|open|>think<|sep|>", "<|close|>think<|sep|>", ""),
    "minimax_m3": ThinkMarks("<mm:think>", "</mm:think>", ""),
    "apertus": ThinkMarks("<|inner_prefix|>", "<|inner_suffix|>", ""),
    "apriel": ThinkMarks("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", "\n"),
}

_M3 = "]<]minimax[>["  # one token, in front of every mark


def _dsml(name: str, section: str) -> Format:
    """DeepSeek's marks since V3.2; versions differ in the section's name."""
    return Format(
        name,
        begin='<｜DSML｜invoke name="',
        end="</｜DSML｜invoke>",
        section=(f"<｜DSML｜{section}>", f"</｜DSML｜{section}>"),
        spread="\n",
        syntax=TaggedCall(
            name=("", '">'),
            key=('<｜DSML｜parameter name="', '"'),
            kind=Kind(' string="', '">', "true", "false"),
            value=("", "</｜DSML｜parameter>"),
        ),
    )


_CALLS = (
    Format("none"),
    Format("hermes", begin="<tool_call>", end="</tool_call>", syntax=JsonCall(), padding="\n"),
    Format(
        "llama3_json",
        syntax=JsonCall(arguments=("parameters", "arguments")),
        between=";",
        dropped=("<|python_tag|>",),
    ),
    Format("pythonic", syntax=PythonCalls(), dropped=("<|python_start|>", "<|python_end|>")),
    Format("mistral", begin="[TOOL_CALLS]", syntax=JsonCall(listed=True)),
    Format(
        "mistral_args",
        begin="[TOOL_CALLS]",
        syntax=NamedJson(after="[ARGS]", id_marks=("[CALL_ID]",)),
    ),
    Format(
        "deepseek_v3",
        begin="<｜tool▁call▁begin｜>",
        end="<｜tool▁call▁end｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        syntax=NamedJson(before="function<｜tool▁sep｜>", after="\n```json\n", tail="\n```"),
    ),
    Format(
        "deepseek_v31",
        begin="<｜tool▁call▁begin｜>",
        end="<｜tool▁call▁end｜>",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        syntax=NamedJson(after="<｜tool▁sep｜>"),
    ),
    Format(
        "qwen3_coder",
        begin="<tool_call>",
        end="</tool_call>",
        syntax=TaggedCall(
            name=("<function=", ">"),
            key=("<parameter=", ">"),
            value=("", "</parameter>"),
            end="</function>",
            padded=True,
        ),
        padding="\n",
        also=("<function=",),  # the opening mark is often left out
    ),
    Format(
        "seed_oss",
        begin="<seed:tool_call>",
        end="</seed:tool_call>",
        syntax=TaggedCall(
            name=("<function=", ">"),
            key=("<parameter=", ">"),
            value=("", "</parameter>"),
            end="</function>",
        ),
        padding="\n",
    ),
    Format(
        "minicpm5",
        begin='<function name="',
        end="</function>",
        syntax=TaggedCall(
            name=("", '">'),
            key=('<param name="', '">'),
            value=("", "</param>"),
            quotes=("<![CDATA[", "]]>"),
            gaps=Gaps("", "", ""),
        ),
    ),
    Format(
        "glm45",
        begin="<tool_call>",
        end="</tool_call>",
        syntax=TaggedCall(
            name=("", "\n"),
            key=("<arg_key>", "</arg_key>"),
            value=("<arg_value>", "</arg_value>"),
            gaps=Gaps(""),
        ),
    ),
    Format(
        "hunyuan3",
        think=THINKING["hunyuan3"],
        begin="<tool_call:opensource>",
        end="</tool_call:opensource>",
        section=("<tool_calls:opensource>", "</tool_calls:opensource>"),
        spread="\n",
        syntax=TaggedCall(
            name=("", "<tool_sep:opensource>"),
            key=("<arg_key:opensource>", "</arg_key:opensource>"),
            value=("<arg_value:opensource>", "</arg_value:opensource>"),
        ),
    ),
    Format(
        "kimi_k2",
        begin="<|tool_call_begin|>",
        end="<|tool_call_end|>",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        syntax=NamedJson(
            before="functions.",
            after="<|tool_call_argument_begin|>",
            id_marks=(":",),
            numbered=True,
        ),
    ),
    Format(
        "minimax_m1",
        syntax=JsonCall(),
        section=("<tool_calls>", "</tool_calls>"),
        between="\n",
        spread="\n",
    ),
    Format(
        "minimax_m2",
        begin='<invoke name="',
        end="</invoke>",
        section=("<minimax:tool_call>", "</minimax:tool_call>"),
        spread="\n",
        syntax=TaggedCall(
            name=("", '">'), key=('<parameter name="', '">'), value=("", "</parameter>")
        ),
    ),
    Format(
        "minimax_m3",
        think=THINKING["minimax_m3"],
        begin=f'{_M3}<invoke name="',
        end=f"{_M3}</invoke>",
        section=(f"{_M3}<tool_call>", f"{_M3}</tool_call>"),
        spread="\n",
        syntax=TaggedCall(
            name=("", '">'), key=(f"{_M3}<", ">"), value=("", f"{_M3}</"), echoed=">"
        ),
    ),
    _dsml("deepseek_v32", "function_calls"),
    _dsml("deepseek_v4", "tool_calls"),
    Format(
        "kimi_k3",
        think=THINKING["kimi_k3"],
        begin='<|open|>call tool="',
        end="<|close|>call<|sep|>",
        section=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        syntax=TaggedCall(
            name=("", '" index="'),
            index='"<|sep|>',
            key=('<|open|>argument key="', '"'),
            kind=Kind(' type="', '"<|sep|>', "string"),
            value=("", "<|close|>argument<|sep|>"),
            gaps=Gaps("", "", ""),
        ),
        answer="<|open|>response<|sep|>",
        dropped=(
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ),
    ),
    Format(
        "glimmer",
        think=ThinkMarks(" to=self<|message|>", "<|eom|>", "<|start|>assistant"),
        begin=" to=",
        end="</atem:invoke>\n</atem:function_calls>",
        leading=True,
        between="<|eom|><|start|>assistant",
        syntax=TaggedCall(
            recipient='<|message|><atem:function_calls>\n<atem:invoke name="',
            name=("", '">'),
            key=('<atem:parameter name="', '">'),
            value=("", "</atem:parameter>"),
        ),
        answer=" to=user<|message|>",
        dropped=(" to=user<|message|>", "<|start|>assistant", "<|eom|>"),
    ),
    Format("granite", begin="<|tool_call|>", syntax=JsonCall(listed=True)),
    Format(
        "cohere",
        begin="<|START_ACTION|>",
        end="<|END_ACTION|>",
        syntax=JsonCall(name=("tool_name", "name"), arguments=("parameters",), listed=True),
        dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        answer="<|START_RESPONSE|>",
    ),
    Format("phi4_mini", begin="<|tool_call|>", end="<|/tool_call|>", syntax=JsonCall(listed=True)),
    Format("nemotron", begin="<TOOLCALL>", end="</TOOLCALL>", syntax=JsonCall(listed=True)),
    Format(
        "apriel",
        think=THINKING["apriel"],
        begin="<tool_calls>",
        end="</tool_calls>",
        syntax=JsonCall(listed=True),
        dropped=("[END FINAL RESPONSE]",),
    ),
    Format(
        "apertus",
        think=THINKING["apertus"],
        begin="<|tools_prefix|>",
        end="<|tools_suffix|>",
        syntax=JsonCall(listed=True, keyed=True),
    ),
    Format(
        "gigachat3",
        begin="<|function_call|>",
        syntax=JsonCall(),
        also=("<|message_sep|>\n\nfunction call<|role_sep|>\n",),
        dropped=("<|message_sep|>",),
    ),
    Format("lfm2", begin="<|tool_call_start|>", end="<|tool_call_end|>", syntax=PythonCalls()),
    Format(
        "solar_open",
        think=ThinkMarks("<|think|>", "<|end|>", "<|begin|>assistant"),
        begin="<|tool_call:begin|>",
        end="<|tool_call:end|>",
        section=("<|tool_calls|>", "<|calls|>"),
        syntax=NamedJson(id_first=True, before="<|tool_call:name|>", after="<|tool_call:args|>"),
        answer="<|content|>",
        dropped=("<|begin|>assistant", "<|content|>", "<|end|>", "<|flush|>"),
    ),
    Format(
        "gemma4",
        think=THINKING["gemma4"],
        begin="<|tool_call>",
        end="<tool_call|>",
        syntax=NamedJson(before="call:", quote='<|"|>'),
        dropped=("<|tool_response>",),
    ),
    Format("functools", begin="functools", syntax=JsonCall(listed=True)),
    Format("functionary", begin="<function=", end="</function>", syntax=NamedJson(after=">")),
    Format(
        "harmony",
        think=ThinkMarks("<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant"),
        begin="<|channel|>commentary to=",
        end="<|call|>",
        syntax=NamedJson(
            before="functions.",
            after="<|message|>",
            id_marks=(" ", "<|channel|>"),
            infix=" <|constrain|>json",
        ),
        answer="<|channel|>final<|message|>",
        dropped=(
            "<|start|>assistant",
            "<|channel|>final<|message|>",
            "<|channel|>commentary<|message|>",
            "<|return|>",
            "<|end|>",
        ),
        also=(" to=functions.",),  # the recipient may precede the channel
    ),
    Format(
        "gemma", begin="```tool_code", end="```", syntax=PythonCalls(bracketed=False), padding="\n"
    ),
)

FORMATS: dict[str, Format] = {f.name: f for f in _CALLS}

# Texts in a chat template -> format; the first row whose texts all occur decides.
_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<|channel|>", "<|message|>", "to=functions"), "harmony"),
    (("<|channel|>", "<|message|>"), "harmony"),
    (("<｜tool▁call▁begin｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁call▁begin｜>",), "deepseek_v31"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("<minimax:tool_call>",), "minimax_m2"),
    (("]<]minimax[>[",), "minimax_m3"),
    (("DSML", "function_calls"), "deepseek_v32"),
    (("DSML", "tool_calls"), "deepseek_v4"),
    (("[BEGIN FINAL RESPONSE]",), "apriel"),
    (("<atem:function_calls>",), "glimmer"),
    (("<|tool_call:begin|>", "<|tool_call:args|>"), "solar_open"),
    (("<tool_call{}>", "<tool_sep{}>", ":opensource"), "hunyuan3"),
    (("<tool_call:opensource>",), "hunyuan3"),
    (("'<|open|>'", "'tools'", "'argument'"), "kimi_k3"),
    (("<|tools_prefix|>", "<|tools_suffix|>"), "apertus"),
    (("<|function_call|>", "<|role_sep|>"), "gigachat3"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<|tool_list_start|>",), "lfm2"),  # its first templates do not render calls
    (("keep_past_thinking", "List of tools: ["), "lfm2"),
    (("function call", "<|role_sep|>", "<|message_sep|>"), "gigachat3"),
    (("<TOOLCALL>",), "nemotron"),
    (('<|"|>', "<|tool_call>", "<tool_call|>"), "gemma4"),
    (("<seed:tool_call>", "<function="), "seed_oss"),
    (('<function name="', '<param name="'), "minicpm5"),
    (("<tool_calls>",), "minimax_m1"),
    (("<|START_ACTION|>",), "cohere"),
    (("<function=", "<parameter="), "qwen3_coder"),
    (("<arg_key>", "<arg_value>"), "glm45"),
    (("[TOOL_CALLS]", "[ARGS]"), "mistral_args"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|/tool_call|>",), "phi4_mini"),
    (("functools[",), "functools"),
    (("<|tool_call|>",), "granite"),
    (("<tool_call>",), "hermes"),
    (("<function=",), "functionary"),
    (("tool_code",), "gemma"),
    (("<|python_start|>",), "pythonic"),
    (("[func_name1(params_name1",), "pythonic"),
    (("<|python_tag|>",), "llama3_json"),
    (('"parameters": dictionary of argument name',), "llama3_json"),
)

_THINK_SIGNS: tuple[tuple[str, str], ...] = (
    ("[THINK]", "magistral"),
    ("<|START_THINKING|>", "cohere"),
    ("<seed:think>", "seed"),
    ("Here is my thought process:", "granite"),
    ("</think>", "think"),
    ("<think>", "think"),
)


def detect(template: str | None) -> Format:
    """Detect the format from a chat template's source; ``none`` if no row matches."""
    source = template or ""
    name = next((f for marks, f in _SIGNS if all(m in source for m in marks)), "none")
    think = next((THINKING[t] for sign, t in _THINK_SIGNS if sign in source), None)
    return with_thinking(FORMATS[name], think)


def with_thinking(form: Format, think: ThinkMarks | None) -> Format:
    """A format with these marks of thinking, unless it has its own."""
    return form if form.think is not None or think is None else replace(form, think=think)
