"""Lark grammars as expressions: the same language as Lark's own parser's, or the reason why not."""

from __future__ import annotations

import re

import pytest

from tidemill.text.regular_grammar import NotRegular, regex_of

PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
SUMS = """
?start: expr              // a comment
expr: term (" " ADD " " term)* -> add
    | term
term.2: factor ("*" factor)~0..3
!factor: INT | "(" INT ")" | [SIGN] HEX
ADD: "+" | "plus"i
SIGN: "-"
HEX: "0x" ("0".."9" | "a".."f")+
%import common.INT
"""


@pytest.mark.parametrize(
    ("grammar", "taken", "refused"),
    [
        (
            PATCH,
            [
                '*** Begin Patch\n*** Add File: a b.txt\n+x = "y\\z"\n+\n*** End Patch\n',
                "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@ f\n-x\n+y\n z\n"
                "*** End of File\n*** End Patch",
                "*** Begin Patch\n*** Delete File: a\n*** Delete File: b\n*** End Patch",
            ],
            [
                "*** Begin Patch\n*** End Patch",
                "*** Begin Patch\n*** Add File: a\nx\n*** End Patch",
                "*** Begin Patch\n*** Add File: \n+x\n*** End Patch",
            ],
        ),
        (
            SUMS,
            ["1", "1 + 2", "1 PLUS 2*3*4", "(7)*-0xff + 0x1"],
            ["", "1+2", "1*2*3*4*5", "--0x1", "0xg", "(1"],
        ),
        ('start: "a" b\nb: "\\n" | "\\x41" | "\\u00e9" | "\\""', ["a\n", "aA", "aé", 'a"'], ["a"]),
        ("start: /a.c/s /B/i", ["a\nCb".replace("C", "c"), "axcB"], ["axC"]),
        ('start: /a\\/b/ "/"', ["a/b/"], ["a\\/b/"]),
        ('start: A A\nA: "x"\n%ignore " "', ["xx", " x  x ", "x x"], ["x"]),
        ('start: "x" ~ 2..3', ["xx", "xxx"], ["x", "xxxx"]),
        ('%import common.WORD -> NAME\nstart: NAME "."', ["abc."], ["ab1."]),
        ('start: "-" "]" "^" "[" "{1}" "$"', ["-]^[{1}$"], ["-"]),
    ],
)
def test_the_language_is_the_same(grammar: str, taken: list[str], refused: list[str]) -> None:
    expression = regex_of(grammar)
    for text in taken:
        assert re.fullmatch(expression, text), (text, expression)
    for text in refused:
        assert not re.fullmatch(expression, text), (text, expression)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('start: "(" start? ")"', "start refers to itself"),
        ('start: a\na: b | "x"\nb: a', "refers to itself"),
        ('begin: "x"', "no rule start"),
        ("start: nothing", "nothing is not defined"),
        ('start: "x', "unexpected"),
        ('start: ("x"', "not closed"),
        ('start: "x" ) "y"', "unexpected ')'"),
        ('start "x"', "expected ':'"),
        ('start: "x"\nstart: "y"', "defined twice"),
        ("%declare X\nstart: X", "%declare is not supported"),
        ("%import other.X\nstart: X", "only names of common"),
        ("%import common.XYZ\nstart: XYZ", "common has no XYZ"),
        ('start: "ab".."c"', "between two characters"),
        ('start: "x" ~ 5000', "repetitions"),
        ("start: /x/u", "flags"),
        ('start: "x" => "y"', "unexpected"),
        ("", "no rule start"),
    ],
)
def test_what_is_not_regular_is_said(grammar: str, reason: str) -> None:
    with pytest.raises(NotRegular, match=re.escape(reason)):
        regex_of(grammar)


def test_rules_that_double_are_bounded() -> None:
    rules = [f"r{i}: r{i + 1} r{i + 1}" for i in range(60)]
    grammar = "\n".join(["start: r0", *rules, 'r60: "x"'])
    with pytest.raises(NotRegular, match="characters"):
        regex_of(grammar)
    deep = "\n".join(["start: r0", *(f"r{i}: r{i + 1}" for i in range(120)), 'r120: "x"'])
    with pytest.raises(NotRegular, match="deep"):
        regex_of(deep)
    with pytest.raises(NotRegular, match="nested"):
        regex_of("start: " + "(" * 5000 + '"x"' + ")" * 5000)
