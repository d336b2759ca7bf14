"""How a family of models writes thinking and tool calls, as data.

A `Format` is read by one engine (`engine.OutputParser`) and turned into a grammar by one builder
(`text.ruling`); neither knows a family. Marks are texts; where a vocabulary has a special token of
that spelling, it is that token.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ThinkMarks:
    """Marks around the thinking.

    Attributes:
        open: begins it; a template may write it into the prompt instead.
        close: ends it; what follows is the answer.
        gap: what the family writes between the closing mark and the answer's first character.
    """

    open: str
    close: str
    gap: str = "\n\n"


@dataclass(frozen=True, slots=True)
class JsonCall:
    """``{"name": ..., "arguments": {...}}``, one object or (with `listed`) a list of them.

    Attributes:
        name, arguments: the keys; the first of several is what the grammar writes.
        listed: a JSON list stands around the calls (one object alone is read as well).
        keyed: the name is the object's only key and the arguments are its value.
        inside: the member that holds name and arguments; empty: the object itself does.
    """

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    listed: bool = False
    keyed: bool = False
    inside: str = ""


@dataclass(frozen=True, slots=True)
class NamedJson:
    """A name, a separator, and the arguments as a JSON object.

    Attributes:
        before: stands in front of the name.
        after: separates name and arguments.
        id_marks: what follows the name from one of these on (an index, a type) is dropped.
        numbered: the grammar writes the first of `id_marks` and a number after the name.
        id_first: an id of the call stands in front of `before`; it is dropped.
        infix: what else the grammar writes between the name and `after`.
        tail: closes the arguments where the call's end mark does not.
        quote: not JSON: strings stand between this mark as they are, and keys without any.
    """

    before: str = ""
    after: str = ""
    id_marks: tuple[str, ...] = ()
    numbered: bool = False
    id_first: bool = False
    infix: str = ""
    tail: str = ""
    quote: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """An attribute after a parameter's name that says how its value is written.

    Attributes:
        before, after: marks around it.
        text: its value where the parameter's is a bare text.
        other: its value where the parameter's is JSON; empty: the JSON type's name.
    """

    before: str
    after: str
    text: str
    other: str = ""


@dataclass(frozen=True, slots=True)
class Gaps:
    """White space that the grammar writes between the marks of a `TaggedCall`; readers skip it.

    Attributes:
        name: after the name's closing mark.
        key: between a parameter's name and its value's opening mark.
        value: after each value.
        end: in front of the mark that closes the call, where it has one of its own.
    """

    name: str = "\n"
    key: str = "\n"
    value: str = "\n"
    end: str = ""


@dataclass(frozen=True, slots=True)
class TaggedCall:
    """A name and parameters between marks; values are texts whose types the tool's schema says.

    Attributes:
        name: marks around the name.
        key: marks around a parameter's name.
        value: marks around its value; an empty opening one means that it follows the key's mark.
        end: closes the call, or empty where the format's own end mark does.
        padded: one line break inside each of a value's marks belongs to the marks.
        kind: an attribute after a parameter's name, in front of `key`'s closing mark.
        index: closes a number that follows the name's closing mark; empty: there is none.
        echoed: a value's closing mark is followed by the parameter's name and this text, and
            values that are objects or lists are elements of the same layout.
        quotes: marks around a text that holds what would otherwise be markup.
        recipient: the name stands in the message's header as well, and this between both.
        gaps: white space that the grammar writes.
    """

    name: tuple[str, str]
    key: tuple[str, str]
    value: tuple[str, str]
    end: str = ""
    padded: bool = False
    kind: Kind | None = None
    index: str = ""
    echoed: str = ""
    quotes: tuple[str, str] = ("", "")
    recipient: str = ""
    gaps: Gaps = Gaps()


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """``[f(a=1), g(b="x")]``: Python calls with literal keyword arguments.

    Attributes:
        bracketed: a list's brackets stand around them.
    """

    bracketed: bool = True


CallSyntax = JsonCall | NamedJson | TaggedCall | PythonCalls


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write an output.

    Attributes:
        name: as on the command line.
        think: marks of the thinking, or None.
        begin: mark in front of each call; empty: a call is what the answer begins with.
        end: mark behind it; may be empty where the syntax ends by itself.
        syntax: of what is between them; None: the family has no tool calls.
        section: marks around all calls, or empty.
        between: separates calls that have no begin mark of their own.
        dropped: marks that say nothing to a reader and are left out of the content.
        padding: white space the grammar writes inside begin and end marks.
        spread: white space the grammar writes inside a section's marks and between its calls.
        answer: mark in front of an answer that is no call, one of `dropped`; where a grammar rules
            the answer and the mark has a special token, it is written.
        also: other marks that begin a call, where no grammar rules the calls. One that holds the
            syntax's first mark is read from there on, another one stands for `begin`.
        leading: `begin` is a mark only where a message begins; elsewhere it is text.
    """

    name: str
    think: ThinkMarks | None = None
    begin: str = ""
    end: str = ""
    syntax: CallSyntax | None = None
    section: tuple[str, str] = ("", "")
    between: str = ""
    dropped: tuple[str, ...] = field(default=())
    padding: str = ""
    spread: str = ""
    answer: str = ""
    also: tuple[str, ...] = ()
    leading: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """All spellings that may be special tokens and must be visible to the parser."""
        found = [*self.section, self.begin, self.end, *self.also, *self.dropped]
        if self.think is not None:
            found += [self.think.open, self.think.close]
        syntax = self.syntax
        if isinstance(syntax, NamedJson):
            found += [syntax.before, syntax.infix, syntax.after, syntax.tail, syntax.quote]
            found += syntax.id_marks
        elif isinstance(syntax, TaggedCall):
            found += [*syntax.name, *syntax.key, *syntax.value, syntax.end, syntax.index]
            found += (*syntax.quotes, syntax.recipient)
            if syntax.kind is not None:
                found += [syntax.kind.before, syntax.kind.after]
        return tuple(dict.fromkeys(mark.strip("\n") for mark in found if mark.strip()))
