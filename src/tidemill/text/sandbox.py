"""Jinja with bounds: a hostile template can neither reach out, hang, nor fill the memory.

Jinja's immutable sandbox keeps templates away from Python's internals; it bounds neither time nor
size. Nothing can stop a thread inside one C call, so no single operation may be large, and every
repetition must pass a check:

- each iteration of a loop and each call spends from the render's `Budget`, which looks at the clock
  (the loops' iterables are wrapped when the template is compiled);
- every operation that makes a large value of small ones (repetition, concatenation, powers,
  joining, replacing, padding, formatting, indenting, and the pieces of a block) has its result
  measured before it is made;
- values that templates build of other values (lists, tuples, mappings) are weighed, shared parts
  counted each time they occur, since printing or comparing them visits every occurrence;
- filters and string methods that no check covers are not available, and naming one is an error.
"""

from __future__ import annotations

import datetime
import json
import operator
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined, markup_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from tidemill.base.clock import monotonic

MAX_RENDER_SECONDS = 5.0
MAX_VALUE_CHARS = 2**24
MAX_WEIGHT = 2**20
MAX_INT_BITS = 1024
MAX_WIDTH = 4096


class BudgetExceeded(Exception):
    """A template went over its bounds in time or size."""


class Budget:
    """What one rendering may spend: seconds of time, and the weight of the values it builds."""

    def __init__(self, seconds: float = MAX_RENDER_SECONDS) -> None:
        self._seconds = seconds
        self._deadline = monotonic() + seconds
        # id -> (the value, kept alive so that its id stays its own; its weight)
        self._weights: dict[int, tuple[Any, int]] = {}

    def tick(self) -> None:
        """Raise BudgetExceeded once the time is used up."""
        if monotonic() > self._deadline:
            raise BudgetExceeded(f"it took longer than {self._seconds:g} s")

    def weigh(self, value: Any) -> int:
        """Nodes of a value as a tree; a part that is shared counts each time it occurs."""
        if isinstance(value, Namespace):
            value = value._Namespace__attrs  # type: ignore[attr-defined]
            return self._measure(value)  # it changes: its weight is not kept
        if not isinstance(value, list | tuple | Mapping):
            return 1
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        weight = self._measure(value)
        self._weights[id(value)] = (value, weight)
        return weight

    def _measure(self, value: Any) -> int:
        self.tick()
        children: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
        weight = 1
        for child in children:
            weight += self.weigh(child)
            if weight > MAX_WEIGHT:
                raise BudgetExceeded(f"a value has more than {MAX_WEIGHT} parts")
        return weight


_active = threading.local()


def _budget() -> Budget:
    # Compiling folds constants, so checks also run outside of a rendering.
    current: Budget | None = getattr(_active, "budget", None)
    if current is None:
        current = _active.budget = Budget()
    return current


def _bound(chars: int) -> None:
    if chars > MAX_VALUE_CHARS:
        raise BudgetExceeded(f"a text or list grew beyond {MAX_VALUE_CHARS} characters")


def _text(value: Any) -> str:
    """`str(value)`, its size checked first."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple | Mapping | Namespace):
        _budget().weigh(value)
        _bound(_chars(value))
    return str(value)


def _chars(value: Any) -> int:
    """Upper bound of the text of a weighed value, in characters (its strings and punctuation)."""
    if isinstance(value, str):
        return len(value) + 4
    if isinstance(value, Namespace):
        return _chars(value._Namespace__attrs) + 16  # type: ignore[attr-defined]
    if isinstance(value, Mapping):
        return sum(_chars(k) + _chars(v) + 4 for k, v in value.items()) + 4
    if isinstance(value, list | tuple):
        return sum(_chars(v) + 2 for v in value) + 4
    return 32


def _concat(parts: Iterable[Any]) -> str:
    """Join the output pieces of a block or template."""
    pieces: list[str] = []
    size = 0
    for part in parts:
        size += len(part)
        _bound(size)
        pieces.append(part)
    return "".join(pieces)


class _Ticking:
    """An iterable whose every step spends from the budget; sized if what it wraps is."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[Any]:
        tick = _budget().tick
        for item in self._inner:
            tick()
            yield item


@pass_context
def _ticking(context: Context, value: Any) -> Any:
    return value if isinstance(value, Undefined) else _Ticking(value)


@pass_context
def _built(context: Context, value: Any) -> Any:
    _budget().weigh(value)
    return value


@pass_context
def _tilde(context: Context, parts: list[Any]) -> str:
    texts = [_text(part) for part in parts]
    _bound(sum(map(len, texts)))
    return markup_join(texts)


# Names no template can spell: what the compiled template calls at the places that need a check.
_HIDDEN_FILTERS: dict[str, Callable[..., Any]] = {
    "\0ticking": _ticking,
    "\0built": _built,
    "\0tilde": _tilde,
}


class _Guard(NodeTransformer):
    """Puts the hidden filters into a template's syntax tree."""

    def _wrap(self, node: nodes.Expr, name: str) -> nodes.Expr:
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
    """``{% generation %}…{% endgeneration %}`` marks the assistant's own text for training."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _int_argument(args: tuple[Any, ...], name: str, limit: int = MAX_WIDTH) -> None:
    for value in args:
        if isinstance(value, int) and abs(value) > limit:
            raise BudgetExceeded(f"{name} with {value} is larger than {limit}")


def _check_replace(text: str, args: tuple[Any, ...]) -> None:
    if len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        _bound(len(text) + text.count(args[0]) * len(args[1]))


def _check_join(text: str, args: tuple[Any, ...]) -> None:
    if args and isinstance(args[0], list | tuple):
        _bound(sum(len(x) + len(text) for x in args[0] if isinstance(x, str)))


def _check_pad(text: str, args: tuple[Any, ...]) -> None:
    _int_argument(args, "padding")


_WIDE = re.compile(r"[0-9]{4,}|\*")


def _check_format(text: str, args: Any) -> None:
    """Widths in a format string, literal or taken from an argument, and the values it repeats."""
    values = list(args.values()) if isinstance(args, Mapping) else list(args)
    if _WIDE.search(text) or "{:{" in text:
        raise BudgetExceeded("a format string asks for a width that is too large or not constant")
    largest = max((len(_text(value)) for value in values), default=0)
    _bound(len(text) + (text.count("{") + text.count("%")) * (largest + 1000))


# String methods whose results can be larger than their inputs, and what checks them.
_STRING_CHECKS: dict[str, Callable[[str, tuple[Any, ...]], None]] = {
    "replace": _check_replace,
    "join": _check_join,
    "center": _check_pad,
    "ljust": _check_pad,
    "rjust": _check_pad,
    "zfill": _check_pad,
}
_STRING_METHODS = frozenset(_STRING_CHECKS) | frozenset(
    "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal "
    "isdigit islower isnumeric isspace istitle isupper lower lstrip partition removeprefix "
    "removesuffix rfind rindex rpartition rsplit rstrip split splitlines startswith strip "
    "swapcase title upper".split()
)


def _binary_repeat(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_INT_BITS:
            raise BudgetExceeded("a number is too large")
    else:
        for value, count in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(count, int):
                _bound(len(value) * max(count, 0))
    return _weighed(operator.mul(left, right))


def _binary_power(left: Any, right: Any) -> Any:
    if not all(isinstance(v, int | float) and abs(v) < 2**32 for v in (left, right)):
        raise BudgetExceeded("a power is too large")
    if isinstance(left, int) and isinstance(right, int) and (
        left.bit_length() * abs(right) > MAX_INT_BITS
    ):
        raise BudgetExceeded("a power is too large")
    return left**right


def _binary_add(left: Any, right: Any) -> Any:
    if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        _bound(len(left) + len(right))
    return _weighed(operator.add(left, right))


def _binary_modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        _check_format(left, right if isinstance(right, tuple | Mapping) else (right,))
    return operator.mod(left, right)


def _weighed(value: Any) -> Any:
    if isinstance(value, list | tuple | Mapping):
        _budget().weigh(value)
    return value


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    _budget().weigh(value)
    _bound(_chars(value))
    if isinstance(indent, str):
        _bound(len(indent) * 1000)
    _int_argument((indent,), "indent", 64)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(_text(message))


def _strftime_now(form: str) -> str:
    _check_format(form, ())
    return datetime.datetime.now().strftime(form)


def _checked_filter(original: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    """`original` behind `check`, which gets the same arguments less Jinja's own first one."""
    passed = getattr(original, "jinja_pass_arg", None)

    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*(args[1:] if passed else args), **kwargs)
        return _weighed(original(*args, **kwargs))

    if passed is not None:
        checked.jinja_pass_arg = passed  # type: ignore[attr-defined]
    return checked


def _filter_replace(text: Any, old: Any = "", new: Any = "", count: Any = None) -> None:
    _check_replace(_text(text), (_text(old), _text(new)))


def _filter_join(value: Any, d: Any = "", attribute: Any = None) -> None:
    if isinstance(value, list | tuple):
        _bound(sum(_chars(item) + len(_text(d)) for item in value))


def _filter_indent(s: Any, width: Any = 4, first: Any = False, blank: Any = False) -> None:
    _int_argument((width,), "indent", 256)
    _bound(len(_text(s)) + (_text(s).count("\n") + 1) * (len(width) if isinstance(width, str) else 256))


def _filter_format(value: Any, *args: Any, **kwargs: Any) -> None:
    _check_format(_text(value), [*args, *kwargs.values()])


def _filter_text(value: Any, *args: Any, **kwargs: Any) -> None:
    _text(value)


_PLAIN_FILTERS = (
    "abs count d default dictsort first float groupby int items last length list map max min "
    "reject rejectattr reverse round safe select selectattr sort unique"
).split()
_TEXT_FILTERS = "capitalize e escape lower string title trim upper".split()
_CHECKED_FILTERS: dict[str, Callable[..., None]] = {
    "replace": _filter_replace,
    "join": _filter_join,
    "indent": _filter_indent,
    "format": _filter_format,
    **dict.fromkeys(_TEXT_FILTERS, _filter_text),
}


class _Environment(ImmutableSandboxedEnvironment):
    """The environment every template runs in."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})
    concat = staticmethod(_concat)  # type: ignore[assignment]

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
        self.filters = {name: _checked_filter(known[name], _no_check) for name in _PLAIN_FILTERS}
        for name, check in _CHECKED_FILTERS.items():
            self.filters[name] = _checked_filter(known[name], check)
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
        _budget().tick()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            check = _STRING_CHECKS.get(__obj.__name__)
            if check is not None:
                check(owner, args)
        wrapped = getattr(getattr(__obj, "__wrapped__", None), "__self__", None)
        if isinstance(wrapped, str):  # the sandbox's own str.format
            _check_format(wrapped, [*args, *kwargs.values()])
        return _weighed(super().call(__context, __obj, *args, **kwargs))


def _no_check(*args: Any, **kwargs: Any) -> None:
    return None


def _finalize(value: Any) -> Any:
    return _text(value) if isinstance(value, list | tuple | Mapping | Namespace) else value


_environment: _Environment | None = None


def _shared_environment() -> _Environment:
    global _environment
    if _environment is None:
        _environment = _Environment()
    return _environment


class TemplateProgram:
    """A template compiled with its checks.

    Raises:
        jinja2.TemplateSyntaxError: the source is not a template, or names an unknown filter.
    """

    def __init__(self, source: str) -> None:
        environment = _shared_environment()
        _active.budget = Budget()
        try:
            tree = _Guard().visit(environment.parse(source))
            tree.set_environment(environment)
            code = environment.compile(tree)
        finally:
            _active.budget = None
        self._template = jinja2.Template.from_code(environment, code, environment.globals)

    def render(self, variables: Mapping[str, Any], budget: Budget) -> str:
        """Run the template; raises BudgetExceeded or whatever the template raises."""
        _active.budget = budget
        try:
            return _concat(self._template.generate(**variables))
        finally:
            _active.budget = None
