"""Writes csrc/text/categories.inl: the general category of every character, as the tokenizers
library's regular expressions see it, since words must be cut where they cut. A test in
tests/text/test_merged_vocabulary.py fails when a newer library sees other ones.

    .venv/bin/python tests/oracles/character_categories.py
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, normalizers

# In the order of csrc/text/characters.h.
CATEGORIES = [
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn",
]  # fmt: skip
SURROGATES = range(0xD800, 0xE000)
LAST = 0x10FFFF
TARGET = Path(__file__).parents[2] / "csrc" / "text" / "categories.inl"
WIDTH = 100


def categories() -> list[str]:
    """The category of each code point."""
    every = "".join(chr(c) for c in range(LAST + 1) if c not in SURROGATES)
    found = ["Cs" if c in SURROGATES else "" for c in range(LAST + 1)]
    for name in CATEGORIES:
        if name == "Cs":
            continue
        rest = normalizers.Replace(Regex(rf"\P{{{name}}}+"), "").normalize_str(every)
        for character in rest:
            assert not found[ord(character)]
            found[ord(character)] = name
    assert all(found)
    return found


def main() -> None:
    found = categories()
    runs = [
        f"0x{code << 5 | CATEGORIES.index(name):X},"
        for code, name in enumerate(found)
        if code == 0 or found[code - 1] != name
    ]
    lines = ["// Written by tests/oracles/character_categories.py."]
    line = ""
    for run in runs:
        if len(line) + 1 + len(run) > WIDTH:
            lines.append(line)
            line = ""
        line = f"{line} {run}" if line else run
    TARGET.write_text("\n".join([*lines, line]) + "\n")
    print(f"{len(runs)} runs in {TARGET}")


if __name__ == "__main__":
    main()
