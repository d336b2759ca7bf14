"""Chat templates of our own, each with the layout in which a family's published one writes calls."""

# ruff: noqa: RUF001, E501  (DeepSeek spells its marks with a full-width bar; Jinja lines are long)

from __future__ import annotations

# Thinking in front of the answer, for the families that mark it so.
THINKING = (
    "{%- if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
)
CONTENT = "{{ m.content or '' }}"
CALLS = "{%- for c in m.tool_calls or [] %}"
ARGS = "{{ f.arguments | tojson }}"
F = CALLS + "{%- set f = c.function %}"
BARE = "{{ v if v is string else v | tojson }}"


def dsml(section: str) -> str:
    return (
        "{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}" + CONTENT
        + "{%- if m.tool_calls %}\n\n<｜DSML｜" + section + ">" + F + '\n<｜DSML｜invoke name="{{ f.name }}">'
        '{%- for k, v in f.arguments.items() %}\n<｜DSML｜parameter name="{{ k }}" string="{{ (v is string) | string | lower }}">'
        + BARE + "</｜DSML｜parameter>{% endfor %}\n</｜DSML｜invoke>{% endfor %}\n</｜DSML｜" + section + ">{% endif %}"
    )  # fmt: skip


# Format -> (the assistant's turn, whether it has a place for thinking, for text beside calls).
TEMPLATES: dict[str, tuple[str, bool, bool]] = {
    "hermes": (
        THINKING + CONTENT + F + '\n<tool_call>\n{"name": "{{ f.name }}", "arguments": ' + ARGS
        + "}\n</tool_call>{% endfor %}", True, True),
    "llama3_json": (
        "{%- if m.tool_calls %}" + F + "{%- if not loop.first %}; {% endif %}"
        '{"name": "{{ f.name }}", "parameters": ' + ARGS + "}{% endfor %}{% else %}" + CONTENT
        + "{% endif %}{# <|python_tag|> #}", False, False),
    "pythonic": (
        "{%- if m.tool_calls %}<|python_start|>[" + F + "{%- if not loop.first %}, {% endif %}{{ f.name }}("
        "{%- for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}{% if not loop.last %}, {% endif %}"
        "{%- endfor %}){% endfor %}]<|python_end|>{% else %}" + CONTENT + "{% endif %}", False, False),
    "mistral": (
        CONTENT + "{%- if m.tool_calls %}[TOOL_CALLS][" + F + "{%- if not loop.first %}, {% endif %}"
        '{"name": "{{ f.name }}", "arguments": ' + ARGS + ', "id": "abcdefghi"}{% endfor %}]{% endif %}',
        False, True),
    "mistral_args": (
        CONTENT + F + "[TOOL_CALLS]{{ f.name }}[CALL_ID]abcdefghi[ARGS]" + ARGS + "{% endfor %}",
        False, True),
    "deepseek_v3": (
        CONTENT + "{%- if m.tool_calls %}<｜tool▁calls▁begin｜>" + F + "{%- if not loop.first %}\n{% endif %}"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n" + ARGS
        + "\n```<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>{% endif %}", False, True),
    "deepseek_v31": (
        "{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}" + CONTENT
        + "{%- if m.tool_calls %}<｜tool▁calls▁begin｜>" + F + "<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>"
        + ARGS + "<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>{% endif %}", True, True),
    "qwen3_coder": (
        CONTENT + F + "\n<tool_call>\n<function={{ f.name }}>\n{%- for k, v in f.arguments.items() %}\n"
        "<parameter={{ k }}>\n" + BARE + "\n</parameter>{% endfor %}\n</function>\n</tool_call>{% endfor %}",
        False, True),
    "glm45": (
        "{%- if m.reasoning_content %}\n<think>{{ m.reasoning_content }}</think>\n{% endif %}" + CONTENT + F
        + "\n<tool_call>{{ f.name }}{{ '\\n' }}{%- for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
        "<arg_value>" + BARE + "</arg_value>{{ '\\n' }}{% endfor %}</tool_call>{% endfor %}", True, True),
    "kimi_k2": (
        CONTENT + "{%- if m.tool_calls %}<|tool_calls_section_begin|>" + F
        + "<|tool_call_begin|>functions.{{ f.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>" + ARGS
        + "<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif %}", False, True),
    "minimax_m1": (
        CONTENT + "{%- if m.tool_calls %}\n<tool_calls>" + F + '\n{"name": "{{ f.name }}", "arguments": '
        + ARGS + "}{% endfor %}\n</tool_calls>{% endif %}", False, True),
    "minimax_m2": (
        THINKING + CONTENT + "{%- if m.tool_calls %}\n<minimax:tool_call>" + F
        + '\n<invoke name="{{ f.name }}">{%- for k, v in f.arguments.items() %}\n<parameter name="{{ k }}">'
        + BARE + "</parameter>{% endfor %}\n</invoke>{% endfor %}\n</minimax:tool_call>{% endif %}", True, True),
    "granite": (
        CONTENT + "{%- if m.tool_calls %}<|tool_call|>[" + F + "{%- if not loop.first %}, {% endif %}"
        '{"name": "{{ f.name }}", "arguments": ' + ARGS + "}{% endfor %}]{% endif %}", False, True),
    "cohere": (
        "{%- if m.reasoning_content %}<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>{% endif %}"
        "{%- if m.tool_calls %}<|START_ACTION|>[" + F + "{%- if not loop.first %},{% endif %}\n"
        '    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", "parameters": ' + ARGS
        + "}{% endfor %}\n]<|END_ACTION|>{% else %}<|START_RESPONSE|>" + CONTENT + "<|END_RESPONSE|>{% endif %}",
        True, False),
    "phi4_mini": (
        CONTENT + "{%- if m.tool_calls %}<|tool_call|>[" + F + "{%- if not loop.first %}, {% endif %}"
        '{"name": "{{ f.name }}", "arguments": ' + ARGS + "}{% endfor %}]<|/tool_call|>{% endif %}", False, True),
    "functools": (
        CONTENT + "{%- if m.tool_calls %}functools[" + F + "{%- if not loop.first %}, {% endif %}"
        '{"name": "{{ f.name }}", "arguments": ' + ARGS + "}{% endfor %}]{% endif %}", False, True),
    "functionary": (
        CONTENT + F + "<function={{ f.name }}>" + ARGS + "</function>{% endfor %}", False, True),
    "harmony": (
        "{%- if m.reasoning_content %}<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|>"
        "<|start|>assistant{% endif %}{%- if m.tool_calls %}{%- set f = m.tool_calls[0].function %}"
        "<|channel|>commentary to=functions.{{ f.name }} <|constrain|>json<|message|>" + ARGS
        + "<|call|>{% else %}<|channel|>final<|message|>" + CONTENT + "<|return|>{% endif %}", True, False),
    "seed_oss": (
        "{%- if m.reasoning_content %}<seed:think>{{ m.reasoning_content }}</seed:think>\n{% endif %}" + CONTENT
        + F + "\n<seed:tool_call>\n<function={{ f.name }}>\n{%- for k, v in f.arguments.items() %}\n"
        "<parameter={{ k }}>{{ v }}</parameter>{% endfor %}\n</function>\n</seed:tool_call>{% endfor %}", True, True),
    "minicpm5": (
        THINKING + CONTENT + F + '\n<function name="{{ f.name }}">{%- for k, v in f.arguments.items() %}'
        '<param name="{{ k }}">{%- if v is string and "\n" in v %}<![CDATA[{{ v }}]]>{% else %}' + BARE
        + "{% endif %}</param>{% endfor %}</function>{% endfor %}", True, True),
    "hunyuan3": (
        "{%- if m.reasoning_content %}<think:opensource>{{ m.reasoning_content }}</think:opensource>{% endif %}"
        + CONTENT + "{%- if m.tool_calls %}<tool_calls:opensource>" + F
        + "\n<tool_call:opensource>{{ f.name }}<tool_sep:opensource>{{ '\\n' }}{%- for k, v in f.arguments.items() %}"
        "<arg_key:opensource>{{ k }}</arg_key:opensource>\n<arg_value:opensource>" + BARE
        + "</arg_value:opensource>\n{% endfor %}</tool_call:opensource>{% endfor %}\n</tool_calls:opensource>{% endif %}",
        True, True),
    "minimax_m3": (
        "{%- macro x(v, n) %}{%- if v is mapping %}{%- for k, i in v.items() %}{{ n }}<{{ k }}>{{ x(i, n) }}{{ n }}</{{ k }}>"
        "{%- endfor %}{%- elif v is string %}{{ v }}{%- elif v is iterable %}{%- for i in v %}{{ n }}<item>{{ x(i, n) }}"
        "{{ n }}</item>{%- endfor %}{%- else %}{{ v | tojson }}{%- endif %}{%- endmacro %}{%- set n = ']<]minimax[>[' %}"
        "{%- if m.reasoning_content %}<mm:think>{{ m.reasoning_content }}</mm:think>{% endif %}" + CONTENT
        + "{%- if m.tool_calls %}{{ n }}<tool_call>" + F + '\n{{ n }}<invoke name="{{ f.name }}">'
        "{%- for k, v in f.arguments.items() %}\n{{ n }}<{{ k }}>{{ x(v, n) }}{{ n }}</{{ k }}>{% endfor %}\n{{ n }}</invoke>"
        "{% endfor %}\n{{ n }}</tool_call>{% endif %}", True, True),
    "deepseek_v32": (dsml("function_calls"), True, True),
    "deepseek_v4": (dsml("tool_calls"), True, True),
    "kimi_k3": (
        "{#- '<|open|>' 'tools' 'argument' #}{%- if m.reasoning_content %}<|open|>think<|sep|>{{ m.reasoning_content }}"
        "<|close|>think<|sep|>{% endif %}<|open|>response<|sep|>" + CONTENT + "<|close|>response<|sep|>"
        "{%- if m.tool_calls %}<|open|>tools<|sep|>" + F
        + '<|open|>call tool="{{ f.name }}" index="{{ loop.index }}"<|sep|>{%- for k, v in f.arguments.items() %}'
        '<|open|>argument key="{{ k }}" type="{{ "string" if v is string else "object" if v is mapping else "boolean" if v is boolean'
        ' else "null" if v is none else "number" if v is number else "array" }}"'
        "<|sep|>" + BARE + "<|close|>argument<|sep|>{% endfor %}<|close|>call<|sep|>{% endfor %}"
        "<|close|>tools<|sep|>{% endif %}<|close|>message<|sep|>", True, True),
    "glimmer": (
        "{%- if m.reasoning_content %} to=self<|message|>{{ m.reasoning_content }}<|eom|><|start|>assistant{% endif %}"
        + "{%- if m.tool_calls %}" + F + ' to={{ f.name }}<|message|><atem:function_calls>\n<atem:invoke name="{{ f.name }}">'
        '{%- for k, v in f.arguments.items() %}\n<atem:parameter name="{{ k }}">' + BARE
        + "</atem:parameter>{% endfor %}\n</atem:invoke>\n</atem:function_calls>{% if not loop.last %}<|eom|><|start|>assistant"
        "{% endif %}{% endfor %}{% else %} to=user<|message|>" + CONTENT + "{% endif %}", True, False),
    "nemotron": (
        "{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}" + CONTENT
        + "{%- if m.tool_calls %}<TOOLCALL>[" + F + "{%- if not loop.first %}, {% endif %}"
        '{"name": "{{ f.name }}", "arguments": ' + ARGS + "}{% endfor %}]</TOOLCALL>{% endif %}", True, True),
    "apriel": (
        "{%- if m.reasoning_content %}Here are my reasoning steps:\n{{ m.reasoning_content }}\n[BEGIN FINAL RESPONSE]\n"
        "{% endif %}" + CONTENT + "{%- if m.tool_calls %}\n<tool_calls>[" + F + "{%- if not loop.first %}, {% endif %}"
        '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson | tojson }}}{% endfor %}]</tool_calls>{% endif %}',
        True, True),
    "apertus": (
        "{%- if m.reasoning_content %}<|inner_prefix|>{{ m.reasoning_content }}<|inner_suffix|>{% endif %}" + CONTENT
        + "{%- if m.tool_calls %}<|tools_prefix|>[" + F + "{%- if not loop.first %}, {% endif %}"
        '{"{{ f.name }}": ' + ARGS + "}{% endfor %}]<|tools_suffix|>{% endif %}", True, True),
    "gigachat3": (
        "{#- <|role_sep|> #}" + CONTENT + F + '<|function_call|>{"name": "{{ f.name }}", "arguments": ' + ARGS
        + "}<|message_sep|>{% endfor %}", False, True),
    "lfm2": (
        THINKING + CONTENT + "{%- if m.tool_calls %}<|tool_call_start|>[" + F + "{%- if not loop.first %}, {% endif %}"
        "{{ f.name }}({%- for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}{% if not loop.last %}, {% endif %}"
        "{%- endfor %}){% endfor %}]<|tool_call_end|>{% endif %}", True, True),
    "solar_open": (
        "{%- if m.reasoning_content %}<|think|>{{ m.reasoning_content }}<|end|><|begin|>assistant{% endif %}"
        "{%- if m.tool_calls %}<|tool_calls|>" + F + "<|tool_call:begin|>id<|tool_call:name|>{{ f.name }}<|tool_call:args|>"
        + ARGS + "<|tool_call:end|>{% endfor %}<|calls|>{% else %}<|content|>" + CONTENT + "<|end|>{% endif %}", True, False),
    "gemma4": (
        "{%- macro x(v) %}{%- if v is string %}<|\"|>{{ v }}<|\"|>{%- elif v is mapping %}{{ '{' }}{%- for k, i in v.items() %}"
        "{{ k }}:{{ x(i) }}{{ '' if loop.last else ',' }}{%- endfor %}{{ '}' }}{%- elif v is iterable %}[{%- for i in v %}"
        "{{ x(i) }}{{ '' if loop.last else ',' }}{%- endfor %}]{%- else %}{{ v }}{%- endif %}{%- endmacro %}"
        "{%- if m.reasoning_content %}<|channel>thought\n{{ m.reasoning_content }}\n<channel|>{% endif %}" + CONTENT
        + F + "<|tool_call>call:{{ f.name }}{{ x(f.arguments) }}<tool_call|>{% endfor %}", True, True),
    "gemma": (
        CONTENT + F + "\n```tool_code\n{{ f.name }}({%- for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}"
        "{% if not loop.last %}, {% endif %}{% endfor %})\n```{% endfor %}", False, True),
}  # fmt: skip


# GLM's marks on one line, as its later templates have them.
INLINE_GLM = (
    "{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    + CONTENT
    + F
    + "<tool_call>{{ f.name }}{%- for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key><arg_value>"
    + BARE
    + "</arg_value>{% endfor %}</tool_call>{% endfor %}"
)

# Layouts and marks that no row of the table has.
SIGILS = (
    "{{ m.content }}" + F + "«call {{ f.name }}»{%- for k, v in f.arguments.items() %}"
    "«arg {{ k }}»{{ v if v is string else v | tojson }}«/arg»{% endfor %}«/call»{% endfor %}"
)
ZAPS = TEMPLATES["hermes"][0].replace("tool_call>", "zap>")
PONDERS = ZAPS.replace("think>", "ponder>")
CODE = (
    "{{ m.content }}" + F + "\n~~~call\n{{ f.name }}({%- for k, v in f.arguments.items() %}{{ k }}="
    "{{ v | tojson }}{% if not loop.last %}, {% endif %}{% endfor %})\n~~~{% endfor %}"
)

# Calls as they are in OpenAI's messages.
DUMPED = (
    "{{ m.content }}{%- if m.tool_calls %}<calls>{{ m.tool_calls | tojson }}</calls>{% endif %}"
)


def whole(turn: str) -> str:
    """A chat template with a turn of the assistant as in `TEMPLATES`."""
    return (
        "{%- if tools %}<|tools|>{{ tools | tojson }}<|end|>{% endif %}"
        "{%- for m in messages %}{%- if m.role == 'assistant' %}<|assistant|>" + turn
        + "<|stop|>{% else %}<|{{ m.role }}|>{{ m.content }}<|stop|>{% endif %}{% endfor %}"
        "{%- if add_generation_prompt %}<|assistant|>{% endif %}"
    )  # fmt: skip
