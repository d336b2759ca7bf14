"""The format of a model family's thinking and tool calls, as data.

One parser (`engine.OutputParser`) reads every `Format`; one builder (`text.call_grammar`) turns it
into a grammar; neither has code for a family. Marks are texts. If a vocabulary has a special token
with a mark's text, the mark is that token.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ThinkMarks:
    """Marks around the thinking.

    Attributes:
        open: begins the thinking; a template may write it into the prompt instead.
        close: ends the thinking; the answer follows.
        gap: the text between the closing mark and the answer's first character.
    """

    open: str
    close: str
    gap: str = "\n\n"


@dataclass(frozen=True, slots=True)
class JsonCall:
    """``{"name": ..., "arguments": {...}}``, one object or (with `listed`) a list of them.

    Attributes:
        name, arguments: the keys; the grammar writes the first of several.
        listed: the calls form a JSON list (a single object is accepted too).
        keyed: the name is the object's only key and the arguments are its value.
        inside: the member that contains name and arguments; empty: the object itself.
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
        before: precedes the name.
        after: separates name and arguments.
        id_marks: the text after the name from one of these marks on (an index, a type) is dropped.
        numbered: the grammar writes the first of `id_marks` and a number after the name.
        id_first: a call id precedes `before`; it is dropped.
        infix: additional text that the grammar writes between the name and `after`.
        tail: closes the arguments, if the call's end mark does not.
        quote: the arguments are not JSON: keys are bare, and strings are unescaped between this
            mark.
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
    """An attribute after a parameter's name that states how the value is written.

    Attributes:
        before, after: marks around it.
        text: its value if the parameter's value is unquoted text.
        other: its value if the parameter's value is JSON; empty: the name of the JSON type.
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
        end: before the mark that closes the call, if the syntax has one.
    """

    name: str = "\n"
    key: str = "\n"
    value: str = "\n"
    end: str = ""


@dataclass(frozen=True, slots=True)
class TaggedCall:
    """A name and parameters between marks; the tool's schema determines the values' types.

    Attributes:
        name: marks around the name.
        key: marks around a parameter's name.
        value: marks around its value; an empty opening mark: the value follows the key's mark.
        end: closes the call; empty: the format's end mark does.
        padded: one newline inside each of a value's marks belongs to the marks.
        kind: an attribute after a parameter's name, before `key`'s closing mark.
        index: closes a number that follows the name's closing mark; empty: no number.
        echoed: a value's closing mark is followed by the parameter's name and this text. Values
            that are objects or lists are nested elements of the same layout.
        quotes: marks around a text that contains markup.
        recipient: the message's header contains the name too; this text is between both.
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
        bracketed: a list's brackets enclose the calls.
    """

    bracketed: bool = True


CallSyntax = JsonCall | NamedJson | TaggedCall | PythonCalls


@dataclass(frozen=True, slots=True)
class Format:
    """The format of an output.

    Attributes:
        name: as on the command line.
        think: marks of the thinking, or None.
        begin: mark before each call; empty: calls begin the answer.
        end: mark after each call; may be empty if the syntax is self-delimiting.
        syntax: of the text between them; None: the family has no tool calls.
        section: marks around all calls, or empty.
        between: separates calls that have no begin mark.
        dropped: marks without meaning for the client, which are removed from the content.
        padding: white space the grammar writes inside begin and end marks.
        spread: white space the grammar writes inside a section's marks and between its calls.
        answer: mark before an answer that is not a call, one of `dropped`. It is forced if a
            grammar constrains the answer and the mark has a special token.
        also: other marks that begin a call, if no grammar constrains the calls. Parsing continues
            at the syntax's first mark if the mark contains it; otherwise the mark replaces `begin`.
        leading: `begin` is a mark only at the beginning of a message; elsewhere it is text.
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
        """All texts that may be special tokens and must be visible to the parser."""
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
