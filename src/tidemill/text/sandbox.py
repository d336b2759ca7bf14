"""A Jinja sandbox with time and memory limits, safe for hostile templates.

Jinja's immutable sandbox isolates templates from Python's internals, but limits neither time nor
memory. A thread cannot be interrupted inside one C call, so every single operation must be small
and every repetition must pass a check:

- Each loop iteration and each call is charged to the rendering's `Budget`, which checks the clock.
  The loops' iterables are wrapped when the template is compiled.
- Operations that can make a large value from small ones (repetition, concatenation, powers,
  joining, replacing, padding, formatting, indenting, the pieces of a block) compute the size of the
  result before they allocate it.
- Values that templates build from other values (lists, tuples, mappings) are weighed. Shared parts
  count once per occurrence, because printing or comparing visits every occurrence.
- Filters and string methods without a check are not available; using one is an error.
"""

from __future__ import annotations

import datetime
import functools
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jinja2
from jinja2 import Environment, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_join, make_attrgetter
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined, markup_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context, pass_environment, pass_eval_context
from jinja2.visitor import NodeTransformer

from tidemill.text.bounds import (
    MAX_INT_BITS,
    Budget,
    BudgetExceeded,
    Ticking,
    allocate,
    check_format,
    check_join,
    check_pad,
    check_replace,
    check_scan,
    check_split,
    check_width,
    concat,
    current_budget,
    spending,
    text_size,
    to_text,
)


@pass_context
def _ticking(context: Context, value: Any) -> Any:
    return value if isinstance(value, Undefined) else Ticking(value)


@pass_context
def _built(context: Context, value: Any) -> Any:
    current_budget().weigh(value)
    return value


@pass_context
def _tilde(context: Context, parts: list[Any]) -> str:
    texts = [to_text(part) for part in parts]
    allocate(sum(map(len, texts)))
    # As Jinja compiles it: text marked safe escapes its neighbours only under autoescape.
    return markup_join(texts) if context.eval_ctx.autoescape else "".join(texts)


# Filters that compiled templates call where a check is needed; templates cannot name them.
_HIDDEN_FILTERS: dict[str, Callable[..., Any]] = {
    "\0ticking": _ticking,
    "\0built": _built,
    "\0tilde": _tilde,
}


class _Guard(NodeTransformer):
    """Inserts the hidden filters into a template's syntax tree."""

    def _wrap(self, node: Any, name: str) -> nodes.Expr:
        wrapped = nodes.Filter(node, name, [], [], None, None)
        wrapped.set_lineno(node.lineno)
        return wrapped

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = self._wrap(node.iter, "\0ticking")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return self._wrap(parts, "\0tilde")

    def _visit_literal(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        is_target = getattr(node, "ctx", "load") != "load"
        children = list(node.iter_child_nodes())
        if is_target or all(isinstance(child, nodes.Const) for child in children):
            return node  # type: ignore[no-any-return]
        return self._wrap(node, "\0built")

    visit_List = _visit_literal
    visit_Tuple = _visit_literal
    visit_Dict = _visit_literal


class _GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}``, which marks the assistant's text for training."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)  # variables set inside are local, as in a macro


# String methods whose time or result can exceed their inputs' size, and their checks.
_STRING_CHECKS: dict[str, Callable[[str, tuple[Any, ...]], None]] = {
    "replace": check_replace,
    "join": check_join,
    "center": check_pad,
    "ljust": check_pad,
    "rjust": check_pad,
    "zfill": check_pad,
    "split": check_split,
    "rsplit": check_split,
    "splitlines": check_split,
    "strip": check_scan,
    "lstrip": check_scan,
    "rstrip": check_scan,
    "rfind": check_scan,
    "rindex": check_scan,
    "rpartition": check_scan,
}
_PLAIN_METHODS = (
    "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal "
    "isdigit islower isnumeric isspace istitle isupper lower partition removeprefix removesuffix "
    "startswith swapcase title upper"
)
_STRING_METHODS = frozenset(_STRING_CHECKS) | frozenset(_PLAIN_METHODS.split())


def _binary_repeat(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_INT_BITS:
            raise BudgetExceeded("a number is too large")
    else:
        for value, count in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(count, int):
                allocate(len(value) * max(count, 0))
    return _weighed(operator.mul(left, right))


def _binary_power(left: Any, right: Any) -> Any:
    if not all(isinstance(v, int | float) and abs(v) < 2**32 for v in (left, right)):
        raise BudgetExceeded("a power is too large")
    if (
        isinstance(left, int)
        and isinstance(right, int)
        and (left.bit_length() * abs(right) > MAX_INT_BITS)
    ):
        raise BudgetExceeded("a power is too large")
    return left**right


def _binary_add(left: Any, right: Any) -> Any:
    if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        allocate(len(left) + len(right))
    return _weighed(operator.add(left, right))


def _binary_modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        check_format(left, right if isinstance(right, tuple | Mapping) else (right,))
    return operator.mod(left, right)


def _weighed(value: Any) -> Any:
    if isinstance(value, list | tuple | Mapping):
        current_budget().weigh(value)
    return value


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, Iterator):
        value = list(Ticking(value))  # the result of `map` and `select`
    current_budget().weigh(value)
    allocate(text_size(value))
    if indent is not None:
        check_width("indent", indent, 16)
        if not isinstance(indent, int):
            raise TypeError("tojson's indent must be a number")
        allocate(current_budget().weigh(value) * 64)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(to_text(message))


def _strftime_now(form: str) -> str:
    check_format(form, ())
    return datetime.datetime.now().strftime(form)


def _checked_filter(original: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    """`original` after `check`, which gets the same arguments without Jinja's own first one."""
    passed = getattr(original, "jinja_pass_arg", None)

    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*(args[1:] if passed else args), **kwargs)
        result = original(*args, **kwargs)
        # Lazy results do their work while they are iterated, so each step must be charged.
        return iter(Ticking(result)) if isinstance(result, Iterator) else _weighed(result)

    if passed is not None:
        checked.jinja_pass_arg = passed  # type: ignore[attr-defined]
    return checked


def _filter_replace(text: Any, old: Any = "", new: Any = "", count: Any = None) -> None:
    check_replace(to_text(text), (to_text(old), to_text(new)))


def _filter_indent(s: Any, width: Any = 4, first: Any = False, blank: Any = False) -> None:
    check_width("indent", width, 256)
    columns = len(width) if isinstance(width, str) else 256
    text = to_text(s)
    allocate(len(text) + (text.count("\n") + 1) * columns)


def _filter_round(value: Any, precision: Any = 0, method: Any = "common") -> None:
    check_width("round", precision, 64)


def _filter_center(value: Any, width: Any = 80) -> None:
    check_pad(to_text(value), (width,))


def _filter_batch(value: Any, linecount: Any, fill_with: Any = None) -> None:
    check_width("batch", linecount)


def _filter_slice(value: Any, slices: Any, fill_with: Any = None) -> None:
    check_width("slice", slices)


def _filter_urlencode(value: Any) -> None:
    allocate(12 * text_size(value))  # a character is at most four bytes, each written as %XX


def _filter_trim(value: Any, chars: Any = None) -> None:
    check_scan(to_text(value), (chars,))


def _filter_format(value: Any, *args: Any, **kwargs: Any) -> None:
    check_format(to_text(value), [*args, *kwargs.values()])


def _filter_text(value: Any, *args: Any, **kwargs: Any) -> None:
    to_text(value)


@pass_eval_context
def _join(eval_context: EvalContext, value: Any, d: Any = "", attribute: Any = None) -> Any:
    if isinstance(value, Undefined):
        return ""
    items = list(Ticking(value))
    # With an attribute only a part of each item is joined, which is no larger than the item.
    allocate(sum(text_size(item) + len(to_text(d)) for item in items))
    return do_join(eval_context, items, d, attribute)


@pass_environment
def _sum(environment: Environment, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    items: Iterable[Any] = Ticking(value)
    if attribute is not None:
        items = map(make_attrgetter(environment, attribute), items)
    return functools.reduce(_binary_add, items, start)


_PLAIN_FILTERS = (
    "abs count d default dictsort first float groupby int items last length list map max min "
    "reject rejectattr reverse safe select selectattr sort truncate unique"
)
_TEXT_FILTERS = "capitalize e escape lower string title upper"
_CHECKED_FILTERS: dict[str, Callable[..., None]] = {
    "replace": _filter_replace,
    "indent": _filter_indent,
    "round": _filter_round,
    "trim": _filter_trim,
    "center": _filter_center,
    "batch": _filter_batch,
    "slice": _filter_slice,
    "urlencode": _filter_urlencode,
    "format": _filter_format,
    **dict.fromkeys(_TEXT_FILTERS.split(), _filter_text),
}


class _Environment(ImmutableSandboxedEnvironment):
    """The environment of all templates."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})
    concat = staticmethod(concat)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            extensions=[loopcontrols, _GenerationTag],
        )
        self.binop_table.update(
            {"*": _binary_repeat, "**": _binary_power, "+": _binary_add, "%": _binary_modulo}
        )
        known = self.filters
        self.filters = {
            name: _checked_filter(known[name], _no_check) for name in _PLAIN_FILTERS.split()
        }
        for name, check in _CHECKED_FILTERS.items():
            self.filters[name] = _checked_filter(known[name], check)
        self.filters["join"] = _join
        self.filters["sum"] = _sum
        self.filters["tojson"] = _tojson
        self.filters.update(_HIDDEN_FILTERS)
        kept = ("range", "dict", "namespace", "joiner", "cycler")
        self.globals = {name: self.globals[name] for name in kept}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in _STRING_METHODS:
            return False
        if isinstance(obj, bytes | int | float):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        current_budget().tick()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            if __obj.__name__ == "join" and args:
                args = (list(Ticking(args[0])), *args[1:])
            check = _STRING_CHECKS.get(__obj.__name__)
            if check is not None:
                check(owner, args)
        wrapped = getattr(getattr(__obj, "__wrapped__", None), "__self__", None)
        if isinstance(wrapped, str):  # the sandbox's own str.format
            check_format(wrapped, [*args, *kwargs.values()])
        return _weighed(super().call(__context, __obj, *args, **kwargs))


def _no_check(*args: Any, **kwargs: Any) -> None:
    return None


def _finalize(value: Any) -> Any:
    return to_text(value) if isinstance(value, list | tuple | Mapping | Namespace) else value


_environment: _Environment | None = None


def _shared_environment() -> _Environment:
    global _environment
    if _environment is None:
        _environment = _Environment()
    return _environment


class TemplateProgram:
    """A template compiled with its checks.

    Attributes:
        names: all variables it reads, including its own.

    Raises:
        jinja2.TemplateSyntaxError: the source is not a template, or names an unknown filter.
    """

    def __init__(self, source: str) -> None:
        environment = _shared_environment()
        # Compilation folds constants, so checks run here too.
        with spending(Budget()):
            parsed = environment.parse(source)
            loaded = (name for name in parsed.find_all(nodes.Name) if name.ctx == "load")
            self.names = frozenset(name.name for name in loaded)
            tree = _Guard().visit(parsed)
            tree.set_environment(environment)
            code = environment.compile(tree)
        self._template = jinja2.Template.from_code(environment, code, environment.globals)

    def render(self, variables: Mapping[str, Any], budget: Budget) -> str:
        """Run the template; raises BudgetExceeded or whatever the template raises."""
        with spending(budget):
            return concat(self._template.generate(**variables))
