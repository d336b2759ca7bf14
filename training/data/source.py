"""Where the generator's choices come from, and the rule that keeps evaluation material unseen.

Names, identifiers, tool names, larger numbers and pairs of summands are split by a hash: one in
ten is held out. A training source refuses held-out items; an evaluation source returns nothing
else. Templates are split by position: every sixth of a list is shown to evaluation only.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


def words(text: str) -> list[str]:
    """The words of a text: long lists stay readable as prose."""
    return text.split()


ONSETS = words("b br c d dr f fl g gl h j k kr l m n p pl qu r s sh st t th tr v w y z")
VOWELS = ["a", "e", "i", "o", "u", "a", "e", "i", "o", "u", "ai", "ea", "io", "oa", "ou"]
CODAS = ["", "", "", "l", "n", "r", "s", "k", "m", "t", "nd", "x", "sh"]
PLACE_ENDS = ["ton", "burg", "dale", "ford", "mere", "port", "field", "haven", "", "", ""]

FIRST_NAMES = words(
    "Anna Tom Maria John Lucy Omar Ivan Sofia Peter Nina Leo Emma Ben Clara David Ella Frank "
    "Grace Hugo Iris Jack Kate Liam Mia Noah Olga Paul Rosa Sam Tina Victor Wendy Alice Bob Carol "
    "Max"
)
CITIES = words(
    "Paris London Berlin Madrid Rome Vienna Oslo Tokyo Cairo Lima Boston Chicago Dublin Prague "
    "Lisbon Athens Delhi Toronto Sydney Seoul Zurich Hamburg Munich Naples Geneva Kyoto"
)
COLOURS = words("red blue green yellow black white brown purple grey pink silver golden")
ANIMALS = words(
    "fox cat dog bear rabbit mouse horse frog goat duck wolf crow turtle deer hen pig swan badger"
)
THINGS = words(
    "lamp chair boat kite drum clock basket bottle box hat bell ring coin map rope key cup book "
    "table phone camera bicycle guitar jacket mirror ladder blanket candle hammer"
)
JOBS = words(
    "baker doctor teacher farmer painter pilot nurse singer writer sailor carpenter gardener cook "
    "driver lawyer judge tailor miner guard"
)
FOODS = words(
    "bread soup cheese rice apples honey pasta salad cake fish beans pears pizza noodles plums"
)
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = words(
    "January February March April May June July August September October November December"
)
NOUNS = words(
    "account alarm album article badge battery bill board bridge budget calendar card channel "
    "client course customer device door engine event field file flag flight folder forest game "
    "garden gate group hotel image invoice item job lake layer letter library light list loan "
    "machine market meal meeting member message model museum note office order page parcel "
    "patient payment planet player playlist pool poster price printer product profile project "
    "queue rack recipe record report river road robot room route sample scene school score sensor "
    "server shelf ship shop signal song station store story street student table tank task team "
    "ticket timer tool tour tower track train tree user valve vehicle village wallet window "
    "worker zone"
)


def held_out(kind: str, text: str) -> bool:
    """Whether an item is reserved for evaluation: one in ten, by a hash of its lower case."""
    return zlib.crc32(f"{kind}:{text.lower()}".encode()) % 10 == 0


@dataclass
class Example:
    """One conversation whose last assistant message is what the model learns to write.

    ``messages`` follow the OpenAI layout; reasoning sits in ``reasoning_content``. ``expect``
    tells the evaluation what a right answer is. With ``every_turn`` all assistant messages are
    learned, each as it was written: a decision per turn instead of one per example.
    """

    kind: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    thinking: bool = False
    expect: dict[str, Any] = field(default_factory=dict)
    every_turn: bool = False

    @property
    def prompt(self) -> list[dict[str, Any]]:
        return self.messages[:-1]

    @property
    def answer(self) -> dict[str, Any]:
        return self.messages[-1]


class Source:
    """Random choices on one side of the split; the same seed gives the same choices."""

    def __init__(self, seed: int | str, evaluation: bool = False) -> None:
        self.rng = random.Random(seed)
        self.evaluation = evaluation
        self.unseen_template = False

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.rng.random() * len(items))]

    def some(self, items: Sequence[T], count: int) -> list[T]:
        return self.rng.sample(list(items), count)

    def template(self, items: Sequence[T]) -> T:
        """An item of a list of wordings; every sixth is for evaluation only."""
        while True:
            index = int(self.rng.random() * len(items))
            if index % 6 != 5:
                return items[index]
            if self.evaluation:
                self.unseen_template = True
                return items[index]

    def split(self, kind: str, make: Callable[[], T]) -> T:
        """Draw until an item falls on this source's side of the hash split."""
        while True:
            item = make()
            if held_out(kind, str(item)) == self.evaluation:
                return item

    def syllables(self, low: int = 2, high: int = 3) -> str:
        count = self.rng.randint(low, high)
        return "".join(
            self.pick(ONSETS) + self.pick(VOWELS) + self.pick(CODAS) for _ in range(count)
        )

    def invented(self) -> str:
        """A made-up name such as ``Zorvan``."""
        return self.split("name", self.syllables).capitalize()

    def person(self) -> str:
        if not self.evaluation and self.chance(0.3):
            return self.pick(FIRST_NAMES)
        return self.invented()

    def full_name(self) -> str:
        return f"{self.person()} {self.invented()}"

    def place(self) -> str:
        if not self.evaluation and self.chance(0.3):
            return self.pick(CITIES)
        word = self.split("name", lambda: self.syllables(1, 2) + self.pick(PLACE_ENDS))
        return word.capitalize()

    def word(self) -> str:
        """A made-up word in lower case, for identifiers and codes."""
        return self.split("name", lambda: self.syllables(1, 2))

    def identifier(self) -> str:
        """A made-up identifier of one or two parts, such as ``zor_count``."""
        style = self.rng.random()
        if style < 0.4:
            return self.word()
        if style < 0.6:
            return f"{self.word()}_{self.pick(NOUNS)}"
        if style < 0.8:
            return f"{self.pick(NOUNS)}_{self.word()}"
        return self.split("name", lambda: f"{self.pick(NOUNS)}_{self.pick(NOUNS)}")

    def number(self, low: int, high: int) -> int:
        """An integer; ranges beyond two digits obey the hash split."""
        if high < 100:
            return self.rng.randint(low, high)
        return self.split("number", lambda: self.rng.randint(low, high))

    def code(self) -> str:
        """A short code such as ``KR-4821``."""
        letters = "".join(self.pick("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(2))
        return f"{letters}-{self.number(100, 9999)}"
