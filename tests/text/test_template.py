"""Rendering equals transformers'; errors are clear; hostile templates hit time and size limits."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.text import bounds
from tidemill.text.template import ChatTemplate

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

CHATML = """\
{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nYou are a mill.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today: " + date_string + "\\n" + system_message + "<|eot_id|>" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- message.content | tojson if message.content is mapping else message.content }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages if not message.tool_calls is defined %}
    {%- if message["role"] == "user" or message["role"] == "assistant" %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate user and assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" if loop.last else "}}, " }}
            {%- endfor %}
            {{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" and message.content %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

QWEN3 = """\
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string
          and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- set reasoning = '' %}
    {%- if message.role == "assistant" %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last %}
            {{- '<think>' ~ reasoning.strip('\\n') ~ '</think>' }}
        {%- endif %}
        {% generation %}{{- content }}{% endgeneration %}
    {%- elif loop.previtem and loop.previtem.role == 'tool' %}
        {{- 'after tool: ' ~ content }}
    {%- elif message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<' ~ message.role ~ ' ' ~ loop.index ~ '/' ~ loop.length ~ '>' ~ content }}
    {%- else %}
        {{- "%s: %s" | format(message.role|upper, content|default('', true)) }}
    {%- endif %}
{%- endfor %}
{%- macro close(items) %}[{{ items|join(', ') }}]{% endmacro %}
{{- close(messages | map(attribute='role') | unique | list) }}
{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}
{% if i > 3 %}{% break %}{% endif %}{{ i }},{% endfor %}
  {# a comment #}
{{ ns.last }} {{ [1, 2] + [3] }} {{ {'a': 'é<'} }} {{ (1, none, true, 1.5) }} {{ undefined_name }}
"""

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "  Grüße <&> 'x' \"y\"  "}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "<think>\nfour\n</think>\n\n4"},
        {"role": "user", "content": "and 3+3?"},
    ],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "<think>x</think>d"},
    ],
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "turn",
            "description": "Turn the wheel <fast> é",
            "parameters": {"type": "object", "properties": {"z": {"type": "number"}, "a": {}}},
        },
    }
]


@pytest.mark.parametrize("source", [CHATML, LLAMA3, MISTRAL, QWEN3])
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("prompt", [True, False])
def test_equals_transformers(source: str, messages: list[Any], tools: Any, prompt: bool) -> None:
    extra = {"enable_thinking": False}
    (theirs,), _ = render_jinja_template(
        conversations=[messages], tools=tools, chat_template=source,
        add_generation_prompt=prompt, **SPECIAL, **extra,
    )  # fmt: skip
    ours = ChatTemplate(source, SPECIAL).render(messages, tools, prompt, **extra)
    assert ours == theirs


def test_tool_calls_equal_transformers() -> None:
    call = {"function": {"name": "turn", "arguments": {"z": 1, "a": ["é", "<"]}}}
    messages = [
        {"role": "user", "content": "turn"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "done"},
    ]
    (theirs,), _ = render_jinja_template(
        conversations=[messages], chat_template=LLAMA3, add_generation_prompt=True, **SPECIAL
    )
    assert ChatTemplate(LLAMA3, SPECIAL).render(messages) == theirs


@pytest.mark.parametrize(
    "source",
    [
        # Text marked safe escapes what stands beside it under autoescape alone.
        "{% set x = messages[0].x %}{{ '<' ~ (x | safe) ~ '&' ~ (x | tojson | safe) ~ '>' }}",
        "{% set x = messages[0].x %}{% autoescape true %}{{ '<' ~ (x | safe) ~ x ~ '&' }}"
        "{% endautoescape %}",
        "{% set x = messages[0].x %}{{ '<' + (x | safe) + '&' }} {{ ['<', x | safe] | join('&') }}",
        # What is set in a generation block ends with it.
        "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
        "{% for m in messages %}{% generation %}{{ loop.index }}{{ m.role }}{% endgeneration %}"
        "{% endfor %}",
        "{{ [1, 2, 3] | sum }} {{ messages | sum(attribute='n', start=2) }} "
        "{{ [[1], [2]] | sum(start=[]) }} {{ [1, 2, 3] | batch(2, 0) | list }} "
        "{{ [1, 2, 3] | slice(2) | list }} {{ 'a' | center(5) }}| {{ 'a b c d' | truncate(5) }} "
        "{{ 'é &/' | urlencode }}",
    ],
)
def test_the_language_equals_transformers(source: str) -> None:
    messages = [{"role": "user", "x": "a<b", "n": 3}, {"role": "tool", "n": 4}]
    (theirs,), _ = render_jinja_template(conversations=[messages], chat_template=source)
    assert ChatTemplate(source).render(messages) == theirs


def test_tojson_takes_what_map_gives() -> None:
    source = "{{ messages | map(attribute='role') | tojson }}"
    assert ChatTemplate(source).render([{"role": "user"}]) == '["user"]'


def test_tokens_that_a_model_has_not() -> None:
    source = "{{ bos_token + 'a' + eos_token }}{{ 'b' if bos_token }}"
    assert ChatTemplate(source).render([]) == "a"
    assert ChatTemplate(source, SPECIAL).render([]) == "<s>a</s>b"


def test_the_names_that_a_template_reads() -> None:
    source = "{# enable_thinking #}{% set a = b %}{{ 'c' }}{{ d.e }}{% for f in g %}{% endfor %}"
    assert ChatTemplate(source).names == {"b", "d", "g"}
    assert ChatTemplate(None).names == frozenset()


def test_the_callers_messages_stay_as_they_are() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    with pytest.raises(TidemillError):
        ChatTemplate("{{ messages.append(1) }}").render(messages)
    with pytest.raises(TidemillError):
        ChatTemplate("{{ messages[0].update(role='x') }}").render(messages)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


def test_a_refusal_names_messages_and_the_reason() -> None:
    template = ChatTemplate(MISTRAL, SPECIAL)
    with pytest.raises(TidemillError, match="roles must alternate") as caught:
        template.render([{"role": "assistant", "content": "x"}])
    assert (caught.value.kind, caught.value.param) == (ErrorKind.BAD_REQUEST, "messages")
    with pytest.raises(TidemillError, match="messages") as caught:
        ChatTemplate("{{ nothing.at.all }}").render([])
    assert caught.value.kind is ErrorKind.BAD_REQUEST


def test_a_missing_template_says_what_to_do() -> None:
    template = ChatTemplate(None)
    assert not template.exists
    with pytest.raises(TidemillError, match=r"/v1/completions.*--chat-template") as caught:
        template.render([])
    assert caught.value.kind is ErrorKind.BAD_REQUEST


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ 'a' | nosuchfilter }}", "{{ " + "(" * 9999, "x" * (2**20 + 1)]
)
def test_a_broken_template_is_a_model_file_error(source: str) -> None:
    with pytest.raises(TidemillError, match="chat template") as caught:
        ChatTemplate(source)
    assert caught.value.kind is ErrorKind.MODEL_FILE


GROW = "{{% set ns = namespace(x={start}) %}}{{% for i in range(80) %}}{{% set ns.x = {step} %}}"
GROW += "{{% endfor %}}{{{{ ns.x }}}}"
BIG = "'a' * 1000000"

HOSTILE = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "lazy filters": "{{ range(99999) | select('in', range(99999) | list) | list | length }}",
    "recursive calls": "{% macro f(x) %}{% if x %}{{ f(x - 1) }}{{ f(x - 1) }}{% endif %}"
    "{% endmacro %}{{ f(99) }}",
    "recursive loops": "{% for a in range(99) recursive %}"
    "{{ loop(range(99)) if loop.depth < 9 }}{% endfor %}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "repetition": "{{ 'a' * 10 ** 10 }}",
    "list repetition": "{{ [1] * 10 ** 10 }}",
    "powers": "{{ 10 ** 10 ** 10 }}",
    "products": GROW.format(start=3, step="ns.x * ns.x"),
    "tilde": GROW.format(start="'ab'", step="ns.x ~ ns.x"),
    "plus": GROW.format(start="'ab'", step="ns.x + ns.x"),
    "shared lists": GROW.format(start="[1]", step="[ns.x, ns.x]"),
    "shared copies": GROW.format(start="[1]", step="[ns.x[:], ns.x[:]]"),
    "shared mappings": GROW.format(start="{}", step="dict(a=ns.x, b=ns.x)"),
    "shared namespaces": "{% set r = namespace(v=1) %}{% for i in range(80) %}"
    "{% set n = namespace(x=r.v, y=r.v) %}{% set r.v = n %}{% endfor %}{{ r.v }}",
    "deep lists": GROW.format(start="[1]", step="[ns.x]").replace("80", "90000"),
    "comparison": "{% set a = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
    "{% set a.x = [a.x, a.x] %}{% set a.y = [a.y, a.y] %}{% endfor %}{{ a.x == a.y }}",
    "output": f"{{% set b = {BIG} %}}{{% for i in range(99999) %}}{{{{ b }}}}{{% endfor %}}",
    "block": f"{{% set b = {BIG} %}}{{% set x %}}{{% for i in range(99999) %}}{{{{ b }}}}"
    "{% endfor %}{% endset %}",
    "many values": f"{{% for i in range(99999) %}}{{% set x = {BIG} %}}{{% endfor %}}",
    "join": "{{ range(99999) | map('string') | join('a' * 1000000) }}",
    "join method": "{{ ''.join(['a' * 1000000] * 90000) }}",
    "replace": f"{{{{ ({BIG}) | replace('a', {BIG}) }}}}",
    "replace method": f"{{{{ ({BIG}).replace('a', {BIG}) }}}}",
    "mapped replace": "{{ range(99999) | map('replace', '1', 'a' * 100000) | join }}",
    "list text": "{{ ['a' * 1000000] * 90000 }}",
    "list json": "{{ (['a' * 1000000] * 90000) | tojson }}",
    "json indent": "{{ [1] | tojson(indent=10 ** 9) }}",
    "center": "{{ 'a'.center(10 ** 10) }}",
    "indent": "{{ 'a' | indent(10 ** 10) }}",
    "round": "{{ 1 | round(10 ** 9, 'ceil') }}",
    "percent width": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (1000000000, 1) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "format width": "{{ '{:1000000000}'.format(1) }}",
    "format nested": "{{ '{0:{1}}'.format(1, 1000000000) }}",
    "date width": "{{ strftime_now('%1000000000Y') }}",
    "strip": "{{ ('a' * 16000000).strip('b' * 16000000 + 'a') }}",
    "find": "{{ ('a' * 16000000).rfind('b' + 'a' * 8000000) }}",
    "split": "{{ ('a ' * 8000000).split() }}",
    "long range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "sum": "{{ range(99999) | map('list') | sum(start=['a' * 1000]) }}",
    "sum of lists": "{{ ([['a'] * 9999] * 99999) | sum(start=[]) | length }}",
    "batch": "{{ [1] | batch(10 ** 9, 0) | list | length }}",
    "slice": "{{ [1] | slice(10 ** 9) | list | length }}",
    "center filter": "{{ 'a' | center(10 ** 10) }}",
    "urlencode": "{{ (('é' * 8000000) | urlencode) }}",
    "json of a generator": "{{ range(99999) | select('in', range(99999) | list) | tojson }}",
    "internals": "{{ ''.__class__.__mro__ }}",
    "files": "{% include 'secret' %}",
    "no such global": "{{ lipsum(100) }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_soon_and_stay_small(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds.Budget.__init__, "__defaults__", (0.3,))
    tracemalloc.start()
    began = time.monotonic()
    try:
        with pytest.raises(TidemillError) as caught:
            ChatTemplate(HOSTILE[name]).render([])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < 10  # the bound is 0.3 s; tracing and shared machines are slow
    assert peak < 300 * 2**20
    assert caught.value.kind in (ErrorKind.BAD_REQUEST, ErrorKind.MODEL_FILE)


def test_years_and_braces_are_no_widths() -> None:
    source = "{{ '2024 %s' % 1 }} {{ '{{x}} {} 2024'.format(1) }} {{ strftime_now('2024') }}"
    assert ChatTemplate(source).render([]) == "2024 1 {x} 1 2024 2024"
