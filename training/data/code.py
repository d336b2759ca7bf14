"""Small programs and edits to them: rename, change a constant, add a docstring, copy.

Programs are assembled from statement patterns over made-up identifiers, so that an answer
repeats long spans of its prompt and cannot be remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from training.data.source import NOUNS, Example, Source

PYTHON_BODIES = [
    ["{v} = {a} + {n}", "return {v} * {b}"],
    ["{v} = []", "for {i} in {a}:", "    {v}.append({i} + {n})", "return {v}"],
    ["if {a} > {n}:", "    return {b}", "return {a} - {n2}"],
    ["{v} = {n}", "while {v} < {a}:", "    {v} = {v} + {n2}", "return {v}"],
    ["{v} = {f2}({a}, {n})", "{w} = {f2}({b}, {n2})", "return {v} + {w}"],
    ["{v} = {{'{k}': {a}, '{k2}': {n}}}", "{v}['{k}'] = {b}", "return {v}"],
    ["total = {n}", "for {i} in range({a}):", "    total += {i} * {b}", "return total"],
    ["{v} = {a}.{k}", "if {v} is None:", "    {v} = {n}", "print('{s}', {v})", "return {v}"],
    ["return [{i} * {n} for {i} in {a} if {i} > {n2}]"],
    ["{v} = len({a})", "{w} = {v} * {n}", "return {w} - {b}"],
]
JS_BODIES = [
    ["const {v} = {a} + {n};", "return {v} * {b};"],
    ["let {v} = {n};", "for (const {i} of {a}) {{", "  {v} += {i} * {n2};", "}}", "return {v};"],
    ["if ({a} > {n}) {{", "  return {b};", "}}", "return {a} - {n2};"],
    ["const {v} = {f2}({a}, {n});", "console.log('{s}', {v});", "return {v};"],
    ["const {v} = {{ {k}: {a}, {k2}: {n} }};", "{v}.{k} = {b};", "return {v};"],
    ["return {a}.map(({i}) => {i} * {n});"],
]


def program(source: Source) -> tuple[str, str, dict[str, str]]:
    """Language, text and the names used in a made-up function."""
    names: dict[str, str] = {}
    for key in ("f", "f2", "a", "b", "v", "w", "k", "k2"):
        while names.get(key) is None or names[key] in [names[k] for k in names if k != key]:
            names[key] = source.identifier()
    names["i"] = source.pick(["i", "x", "item", "y"])
    names["s"] = source.word()
    names["n"] = str(source.number(2, 99))
    names["n2"] = str(source.number(100, 999))
    python = source.chance(0.65)
    body = source.pick(PYTHON_BODIES if python else JS_BODIES)
    indent = "    " if python else "  "
    lines = [indent + line.format(**names) for line in body]
    if python:
        lines.insert(0, f"def {names['f']}({names['a']}, {names['b']}):")
        return "python", "\n".join(lines), names
    lines.insert(0, f"function {names['f']}({names['a']}, {names['b']}) {{")
    return "javascript", "\n".join([*lines, "}"]), names


def _rename(source: Source, text: str, names: dict[str, str]) -> tuple[str, str]:
    used = [k for k in ("f", "a", "v", "w") if re.search(rf"\b{names[k]}\b", text)]
    old, new = names[source.pick(used)], source.identifier()
    wording = source.template(
        ["Rename `{o}` to `{n}`.", "Change the name `{o}` to `{n}`.", "Rename `{o}` as `{n}`.",
         "Please rename `{o}` to `{n}` everywhere.", "Use the name `{n}` instead of `{o}`.",
         "Replace the name `{o}` by `{n}`.",
         "`{o}` should be called `{n}`.", "Call `{o}` `{n}` from now on.",
         "Write `{n}` wherever it says `{o}`.", "Replace `{o}` with `{n}`.",
         "I want `{o}` to be named `{n}`.", "Please use `{n}` as the name of `{o}`.",
         "Swap the name `{o}` for `{n}`."]
    )  # fmt: skip
    return wording.format(o=old, n=new), re.sub(rf"\b{old}\b", new, text)


def _constant(source: Source, text: str, names: dict[str, str]) -> tuple[str, str]:
    used = [k for k in ("n", "n2") if re.search(rf"\b{names[k]}\b", text)]
    old, new = names[source.pick(used)], str(source.number(2, 999))
    wording = source.template(
        ["Change {o} to {n}.", "Replace the number {o} by {n}.", "Use {n} instead of {o}.",
         "Change the constant {o} to {n}.", "Set the number {o} to {n}.",
         "The constant {o} should be {n}.",
         "Write {n} where it says {o}.", "Replace {o} with {n}.", "Make {o} into {n}.",
         "The number {o} has to be {n}.", "Please change the number {o} to {n}.",
         "{o} should be {n}.", "Swap {o} for {n}."]
    )  # fmt: skip
    return wording.format(o=old, n=new), re.sub(rf"\b{old}\b", new, text)


def _docstring(source: Source, text: str, names: dict[str, str]) -> tuple[str, str]:
    words = source.pick(
        [f"Return the {source.pick(NOUNS)} of {source.invented()}.",
         f"Compute the {source.pick(NOUNS)} {source.pick(NOUNS)}.",
         f"Find the {source.pick(NOUNS)} for {source.invented()}."]
    )  # fmt: skip
    first, rest = text.split("\n", 1)
    line = f'    """{words}"""' if text.startswith("def") else f"  /** {words} */"
    wording = source.template(
        ['Add the docstring "{w}".', 'Document it: "{w}"', 'Add this docstring: "{w}"',
         'Please add the docstring "{w}" to the function.', 'Give it the docstring "{w}".',
         'Insert the docstring "{w}".',
         'Put in the docstring "{w}".', 'Write the docstring "{w}".',
         'The docstring should be "{w}".', 'Document the function: "{w}"',
         'Please document this with "{w}"', 'It needs the docstring "{w}".',
         'Use "{w}" as the docstring.']
    )  # fmt: skip
    return wording.format(w=words), f"{first}\n{line}\n{rest}"


def _copy(source: Source, text: str, names: dict[str, str]) -> tuple[str, str]:
    return source.pick(["Repeat this code.", "Copy the code.", "Print the code again."]), text


EDITS: dict[str, Callable[[Source, str, dict[str, str]], tuple[str, str]]] = {
    "rename": _rename, "constant": _constant, "docstring": _docstring, "copy": _copy,
}  # fmt: skip


def edit(source: Source, operation: str | None = None) -> Example:
    """A piece of code, an instruction, and the whole edited piece as the answer."""
    language, text, names = program(source)
    operation = operation or source.pick(
        ["rename", "rename", "rename", "constant", "constant", "docstring", "docstring", "copy"]
    )
    instruction, edited = EDITS[operation](source, text, names)
    fenced = f"```{language}\n{text}\n```"
    question = f"{fenced}\n{instruction}" if source.chance(0.3) else f"{instruction}\n{fenced}"
    content = f"```{language}\n{edited}\n```"
    answer: dict = {"role": "assistant", "content": content}
    thinking = source.chance(0.1)
    if thinking:
        answer["reasoning_content"] = f"{instruction} The rest stays as it is."
    messages = [{"role": "user", "content": question}, answer]
    expect = {"text": content, "code": edited, "operation": operation}
    return Example("code", messages, thinking=thinking, expect=expect)
