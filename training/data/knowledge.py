"""The table of common knowledge that brook is taught: all of it, and nothing beyond it.

Each entry of ``FACTS`` is (topic, subject, value); ``QUESTIONS`` and ``ANSWERS`` give wordings.
"""

from __future__ import annotations

from training.data.source import words

CAPITALS = (
    "France:Paris Germany:Berlin Spain:Madrid Italy:Rome Austria:Vienna Norway:Oslo Japan:Tokyo"
    " Egypt:Cairo Peru:Lima Ireland:Dublin Portugal:Lisbon Greece:Athens Poland:Warsaw"
    " Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Hungary:Budapest Belgium:Brussels"
    " Russia:Moscow China:Beijing Cuba:Havana Kenya:Nairobi Canada:Ottawa Chile:Santiago"
    " Iran:Tehran Iraq:Baghdad Turkey:Ankara Ukraine:Kyiv Thailand:Bangkok Vietnam:Hanoi"
    " Australia:Canberra Brazil:Brasilia Morocco:Rabat Croatia:Zagreb Serbia:Belgrade"
    " Romania:Bucharest Bulgaria:Sofia Switzerland:Bern Iceland:Reykjavik India:Delhi"
)
SYMBOLS = (
    "hydrogen:H helium:He carbon:C nitrogen:N oxygen:O sodium:Na iron:Fe gold:Au silver:Ag"
    " copper:Cu zinc:Zn tin:Sn lead:Pb calcium:Ca potassium:K neon:Ne silicon:Si sulfur:S"
    " chlorine:Cl magnesium:Mg lithium:Li mercury:Hg uranium:U aluminium:Al"
)
OPPOSITES = (
    "hot:cold big:small fast:slow up:down left:right day:night open:closed old:new full:empty"
    " light:dark happy:sad high:low wet:dry rich:poor strong:weak early:late hard:soft loud:quiet"
    " clean:dirty near:far first:last true:false buy:sell win:lose push:pull thick:thin wide:narrow"
    " sweet:sour begin:end love:hate north:south east:west long:short young:old good:bad"
)
COLOUR_OF = (
    "snow:white grass:green blood:red coal:black milk:white gold:yellow"
    " chocolate:brown tomatoes:red bananas:yellow emeralds:green rubies:red cherries:red"
)
SOUNDS = (
    "dog:barks cat:meows cow:moos duck:quacks lion:roars sheep:bleats wolf:howls frog:croaks"
    " pig:oinks horse:neighs bee:buzzes snake:hisses owl:hoots"
)
YOUNG = (
    "dog:puppy cat:kitten cow:calf duck:duckling lion:cub sheep:lamb horse:foal goat:kid"
    " hen:chick bear:cub pig:piglet frog:tadpole deer:fawn swan:cygnet"
)
LEGS = "spider:8 dog:4 bird:2 ant:6 cat:4 horse:4 bee:6 snake:0 cow:4 hen:2 crab:10"
PLURALS = (
    "mouse:mice child:children foot:feet tooth:teeth goose:geese man:men woman:women ox:oxen"
    " leaf:leaves knife:knives wolf:wolves box:boxes city:cities sheep:sheep fish:fish"
)
PAST = (
    "go:went see:saw eat:ate run:ran take:took write:wrote sing:sang swim:swam buy:bought"
    " think:thought give:gave come:came fly:flew drink:drank speak:spoke break:broke"
)
COUNTS = {
    "days in a week": "7", "months in a year": "12", "hours in a day": "24",
    "minutes in an hour": "60", "seconds in a minute": "60", "sides of a triangle": "3",
    "sides of a square": "4", "sides of a hexagon": "6", "letters in the alphabet": "26",
    "planets in the solar system": "8", "continents": "7", "legs of a spider": "8",
    "strings of a violin": "4", "cents in a dollar": "100", "years in a century": "100",
    "eggs in a dozen": "12", "colours of the rainbow": "7", "metres in a kilometre": "1000",
}  # fmt: skip
PLANETS = ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"]
WEEK = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
YEAR = words(
    "January February March April May June July August September October November December"
)
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"]
LONE = {
    "the largest planet": "Jupiter", "the smallest planet": "Mercury",
    "the planet with the famous rings": "Saturn", "the red planet": "Mars",
    "the star closest to Earth": "the Sun", "the largest ocean": "the Pacific Ocean",
    "the longest river": "the Nile", "the highest mountain": "Mount Everest",
    "the largest animal": "the blue whale", "the fastest land animal": "the cheetah",
    "the tallest animal": "the giraffe", "the largest land animal": "the elephant",
    "the freezing point of water": "0 degrees Celsius",
    "the boiling point of water": "100 degrees Celsius",
    "the chemical formula of water": "H2O", "the gas that we breathe to live": "oxygen",
    "the largest continent": "Asia", "the smallest continent": "Australia",
    "the largest country": "Russia", "the coldest continent": "Antarctica",
    "the currency of Japan": "the yen", "the currency of the United States": "the dollar",
    "the currency of France": "the euro", "the language of Brazil": "Portuguese",
    "the language of Austria": "German", "the author of Hamlet": "William Shakespeare",
    "the painter of the Mona Lisa": "Leonardo da Vinci",
    "the natural satellite of Earth": "the Moon", "the hardest natural material": "diamond",
    "the metal that is liquid at room temperature": "mercury",
}  # fmt: skip


def _pairs(text: str) -> list[tuple[str, str]]:
    return [tuple(item.split(":")) for item in text.split()]  # type: ignore[misc]


def _table() -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    named = {
        "capital": CAPITALS, "symbol": SYMBOLS, "opposite": OPPOSITES, "colour": COLOUR_OF,
        "sound": SOUNDS, "young": YOUNG, "legs": LEGS, "plural": PLURALS, "past": PAST,
    }  # fmt: skip
    for topic, text in named.items():
        rows += [(topic, subject, value) for subject, value in _pairs(text)]
    rows += [("country", city, land) for land, city in _pairs(CAPITALS)]
    rows += [("opposite", b, a) for a, b in _pairs(OPPOSITES) if b not in ("old",)]
    rows += [("count", subject, value) for subject, value in COUNTS.items()]
    rows += [("lone", subject, value) for subject, value in LONE.items()]
    rows += [("after", a, b) for a, b in zip(WEEK, WEEK[1:] + WEEK[:1], strict=True)]
    rows += [("after", a, b) for a, b in zip(YEAR, YEAR[1:] + YEAR[:1], strict=True)]
    rows += [("before", b, a) for a, b in zip(WEEK, WEEK[1:] + WEEK[:1], strict=True)]
    rows += [("before", b, a) for a, b in zip(YEAR, YEAR[1:] + YEAR[:1], strict=True)]
    rows += [("planet", n, p) for n, p in zip(ORDINALS, PLANETS, strict=True)]
    return rows


FACTS = _table()

QUESTIONS: dict[str, list[str]] = {
    "capital": ["What is the capital of {s}?", "Which city is the capital of {s}?",
                "Name the capital of {s}.", "capital of {s}?", "Tell me the capital of {s}."],
    "country": ["Which country has {s} as its capital?", "{s} is the capital of which country?",
                "Of which country is {s} the capital?"],
    "symbol": ["What is the chemical symbol of {s}?", "What is the symbol for {s}?",
               "Which symbol does {s} have?"],
    "opposite": ["What is the opposite of {s}?", "Give me the opposite of {s}.",
                 "Which word is the opposite of {s}?"],
    "colour": ["What colour is {s}?", "What color is {s}?", "Tell me the colour of {s}."],
    "sound": ["What sound does a {s} make?", "What does a {s} do to make noise?"],
    "young": ["What is a young {s} called?", "What do you call a baby {s}?"],
    "legs": ["How many legs does a {s} have?", "How many legs has a {s}?"],
    "plural": ["What is the plural of {s}?", "Give the plural of {s}."],
    "past": ["What is the past tense of {s}?", "Give the past tense of {s}."],
    "count": ["How many {s} are there?", "What is the number of {s}?", "Number of {s}?"],
    "lone": ["What is {s}?", "Name {s}.", "Can you tell me {s}?"],
    "after": ["What comes after {s}?", "What follows {s}?", "Which one comes right after {s}?"],
    "before": ["What comes before {s}?", "Which one comes right before {s}?"],
    "planet": ["What is the {s} planet from the Sun?", "Which planet is the {s} from the Sun?"],
}  # fmt: skip
ANSWERS = {
    "capital": "The capital of {s} is {v}.", "country": "{s} is the capital of {v}.",
    "symbol": "The chemical symbol of {s} is {v}.", "opposite": "The opposite of {s} is {v}.",
    "colour": "The colour of {s} is {v}.", "sound": "A {s} {v}.",
    "young": "A young {s} is called a {v}.", "legs": "A {s} has {v} legs.",
    "plural": "The plural of {s} is {v}.", "past": "The past tense of {s} is {v}.",
    "count": "The number of {s} is {v}.", "lone": "That is {v}.",
    "after": "{v} comes after {s}.", "before": "{v} comes before {s}.",
    "planet": "The {s} planet from the Sun is {v}.",
}  # fmt: skip
