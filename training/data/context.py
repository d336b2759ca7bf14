"""Work on what the prompt says: facts, JSON extraction, summaries, memory over turns, copying."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from training.data.chat import TALK, with_system
from training.data.source import (
    ANIMALS,
    COLOURS,
    DAYS,
    FOODS,
    JOBS,
    MONTHS,
    NOUNS,
    THINGS,
    Example,
    Source,
)

Maker = Callable[[Source], Any]
VALUES: dict[str, Maker] = {
    "colour": lambda s: s.pick(COLOURS), "animal": lambda s: s.pick(ANIMALS),
    "thing": lambda s: s.pick(THINGS), "job": lambda s: s.pick(JOBS),
    "food": lambda s: s.pick(FOODS), "day": lambda s: s.pick(DAYS),
    "month": lambda s: s.pick(MONTHS), "person": lambda s: s.person(),
    "place": lambda s: s.place(), "name": lambda s: s.invented(), "code": lambda s: s.code(),
    "small": lambda s: s.number(2, 99), "big": lambda s: s.number(100, 9999),
    "word": lambda s: s.word(), "full": lambda s: s.full_name(),
    "year": lambda s: s.number(1900, 2030), "noun": lambda s: s.pick(NOUNS),
}  # fmt: skip

# attribute: (value, statements, questions); {e} is the entity, {v} the value
FACTS: dict[str, tuple[str, list[str], list[str]]] = {
    "lives": ("place", ["{e} lives in {v}.", "{e}'s home is in {v}.", "The home of {e} is {v}."],
              ["Where does {e} live?", "In which town does {e} live?", "What is {e}'s home?"]),
    "job": ("job", ["{e} works as a {v}.", "{e} is a {v}.", "By trade, {e} is a {v}."],
            ["What is {e}'s job?", "What does {e} work as?", "Which job does {e} have?"]),
    "pet": ("animal", ["{e} has a {v}.", "{e} keeps a {v} as a pet.", "{e}'s pet is a {v}."],
            ["Which animal does {e} have?", "What pet does {e} have?", "What is {e}'s pet?"]),
    "age": ("small", ["{e} is {v} years old.", "The age of {e} is {v}.", "{e} turned {v}."],
            ["How old is {e}?", "What is the age of {e}?", "What is {e}'s age?"]),
    "likes": ("food", ["{e} likes {v}.", "{e} loves to eat {v}.", "The favourite food of {e} is"
              " {v}."], ["What does {e} like to eat?", "What is {e}'s favourite food?"]),
    "boss": ("person", ["The manager of {e} is {v}.", "{v} is the manager of {e}.", "{e} works for"
             " {v}."], ["Who is the manager of {e}?", "Who is {e}'s manager?"]),
    "friend": ("person", ["{e}'s best friend is {v}.", "The best friend of {e} is {v}."],
               ["Who is {e}'s best friend?", "Who is the best friend of {e}?"]),
    "car": ("colour", ["{e} drives a {v} car.", "The car of {e} is {v}.", "{e} owns a {v} car."],
            ["What colour is {e}'s car?", "What is the colour of the car of {e}?"]),
    "founded": ("year", ["{e} was founded in {v}.", "{e} was built in {v}."],
                ["When was {e} founded?", "In which year was {e} founded?", "When was {e} built?"]),
    "code": ("code", ["The code of {e} is {v}.", "{e} has the code {v}.", "{e} uses code {v}."],
             ["What is the code of {e}?", "Which code does {e} have?", "What is {e}'s code?"]),
    "owns": ("thing", ["{e} bought a {v}.", "{e} found a {v}.", "{e} is carrying a {v}."],
             ["What does {e} have?", "What did {e} get?", "Which thing does {e} have?"]),
    "meets": ("day", ["{e} comes on {v}.", "The meeting with {e} is on {v}.", "{e} arrives on"
              " {v}."], ["On which day does {e} come?", "When does {e} come?"]),
    "price": ("big", ["{e} costs {v} dollars.", "The price of {e} is {v} dollars."],
              ["How much does {e} cost?", "What is the price of {e}?"]),
    "city": ("place", ["{e} is near {v}.", "{e} lies close to {v}."],
             ["What is {e} near?", "Which place is {e} close to?"]),
    "noun": ("name", ["The {n} of {e} is called {v}.", "{e} named the {n} {v}."],
             ["What is the {n} of {e} called?", "What is the name of the {n} of {e}?"]),
}  # fmt: skip
ASK = [
    "{t}\n\n{q}", "Text: {t}\nQuestion: {q}", "{q}\n\n{t}", "Read this: {t}\n{q}",
    "Here are some facts. {t} {q}", "Context:\n{t}\n\nUsing the context, answer: {q}",
    "{t} {q}",
]  # fmt: skip
NOT_SAID = "The text does not say."


def facts(source: Source, count: int | None = None) -> Example:
    """Statements about made-up people and places, and a question on one of them."""
    count = count or source.pick([1, 2, 3, 3, 4, 4, 5, 6, 8])
    people = [source.invented() if source.chance(0.75) else source.person() for _ in range(3)]
    rows: dict[tuple[str, str], tuple[str, str, str]] = {}
    while len(rows) < count:
        if source.chance(0.5 if count < 12 else 1.0):
            people.append(source.invented())
        entity, attribute = source.pick(people), source.pick(list(FACTS))
        if (entity, attribute) in rows:
            continue
        kind, statements, _ = FACTS[attribute]
        value, noun = str(VALUES[kind](source)), source.pick(NOUNS)
        text = source.pick(statements).format(e=entity, v=value, n=noun)
        rows[entity, attribute] = (text, value, noun)
    (entity, attribute), (statement, value, noun) = source.pick(list(rows.items()))
    asked = source.pick(FACTS[attribute][2])
    if source.chance(0.08):
        missing = [a for a in FACTS if (entity, a) not in rows]
        attribute = source.pick(missing)
        asked, value = source.pick(FACTS[attribute][2]), NOT_SAID
        statement = "Nothing in the text says that."
    separator = source.pick([" ", " ", " ", "\n", "\n- "])
    body = separator.join(row[0] for row in rows.values())
    question = source.template(ASK).format(t=body, q=asked.format(e=entity, n=noun))
    thinking = source.chance(0.15)
    answer: dict = {"role": "assistant", "content": value}
    if value != NOT_SAID and value[-1] != ".":
        answer["content"] = value + "."
    if thinking:
        answer["reasoning_content"] = f"The text says: {statement}"
    messages = [*with_system(source, [{"role": "user", "content": question}], 0.15), answer]
    return Example("facts", messages, thinking=thinking, expect={"text": answer["content"]})


# One record: its fields with their values, and wordings of each field.
RECORDS: dict[str, dict[str, tuple[str, list[str]]]] = {
    "person": {
        "name": ("full", ["This is about {v}.", "Her name is {v}.", "Meet {v}.", "We met {v}."]),
        "age": ("small", ["The age is {v}.", "At {v} years of age, life is good.", "Age: {v}."]),
        "city": ("place", ["Home is {v}.", "The family lives in {v}.", "The town is {v}."]),
        "job": ("job", ["The trade is that of a {v}.", "Work as a {v} is hard.", "Job: {v}."]),
        "pet": ("animal", ["A {v} is the pet.", "At home waits a {v}.", "The pet is a {v}."]),
        "hobby": ("noun", ["The hobby has to do with a {v}.", "Hobby: {v}."]),
    },
    "product": {
        "product": ("thing", ["We sell a {v}.", "The product is a {v}.", "On offer: a {v}."]),
        "brand": ("name", ["It is made by {v}.", "The brand is {v}.", "{v} makes it."]),
        "price": ("big", ["It costs {v} dollars.", "The price is {v} dollars.", "Pay {v}."]),
        "color": ("colour", ["It comes in {v}.", "Its colour is {v}.", "It is {v}."]),
        "stock": ("small", ["There are {v} in stock.", "{v} pieces are left.", "Stock: {v}."]),
        "code": ("code", ["The article number is {v}.", "Code {v}.", "Ask for {v}."]),
    },
    "event": {
        "event": ("noun", ["The event is about a {v}.", "A {v} party is planned.", "Come: {v}!"]),
        "day": ("day", ["It takes place on {v}.", "The day is {v}.", "We meet on {v}."]),
        "place": ("place", ["It happens in {v}.", "The place is {v}.", "Come to {v}."]),
        "guests": ("small", ["{v} guests will come.", "We expect {v} people.", "Guests: {v}."]),
        "host": ("person", ["The host is {v}.", "{v} invites you.", "Ask {v} for details."]),
        "month": ("month", ["It is in {v}.", "The month is {v}.", "Not before {v}."]),
    },
    "order": {
        "order_id": ("code", ["The order is {v}.", "Order number: {v}.",
                              "I am writing about {v}."]),
        "customer": ("full", ["The customer is {v}.", "It was ordered by {v}.", "{v} bought it."]),
        "item": ("thing", ["The item is a {v}.", "A {v} was ordered.", "In the box is a {v}."]),
        "quantity": ("small", ["The quantity is {v}.", "{v} pieces, please.", "We need {v}."]),
        "total": ("big", ["The total is {v} dollars.", "In all it cost {v}.", "Sum: {v}."]),
        "city": ("place", ["Send it to {v}.", "It goes to {v}.", "Deliver it in {v}."]),
    },
    "trip": {
        "origin": ("place", ["The trip starts in {v}.", "We leave from {v}.", "From {v}."]),
        "destination": ("place", ["The goal is {v}.", "We travel to {v}.", "It ends in {v}."]),
        "day": ("day", ["We leave on {v}.", "The day of travel is {v}.", "Start: {v}."]),
        "travellers": ("small", ["We are {v} people.", "{v} travellers take part."]),
        "price": ("big", ["The ticket costs {v} dollars.", "The fare is {v}.", "Fare: {v}."]),
        "guide": ("person", ["Our guide is {v}.", "{v} leads us.", "Follow {v}."]),
    },
}  # fmt: skip
EXTRACT = [
    "Extract {f} as JSON.\n\n{t}", "{t}\n\nExtract {f} as JSON.", "Give me {f} as JSON: {t}",
    "Read the text and return JSON with the keys {f}.\n{t}", "Return {f} as JSON.\nText: {t}",
    "{t}\nWrite {f} as a JSON object.", "{t}\n\nPut {f} in JSON.",
    "{t}\n\nWrite {f} in JSON.", "Write a JSON object with {f}.\n\n{t}",
    "{t}\nI need a JSON object with {f}.", "Turn {f} into JSON: {t}",
    "Please find {f} in this text and answer with JSON.\n{t}", "As JSON, please: {f}.\n{t}",
    "{t}\nWhat are {f}? Use JSON.", "{t}\nShow {f} as a JSON object.",
]  # fmt: skip
FILLERS = [
    "The weather was fine.", "All went well.", "Nobody was late.", "That is all for now.",
    "Thank you for reading.", "It was a long week.", "More will follow.", "We are glad about it.",
]  # fmt: skip


def extraction(source: Source, fields: int | None = None) -> Example:
    """A paragraph about one record and the request for two to five of its fields as JSON."""
    record = dict(RECORDS[source.pick(list(RECORDS))])
    keys = source.some(list(record), source.pick([3, 4, 5, 6]))
    values: dict[str, Any] = {}
    sentences = []
    for key in keys:
        kind, wordings = record[key]
        values[key] = VALUES[kind](source)
        sentences.append(source.pick(wordings).format(v=values[key]))
    for _ in range(source.pick([0, 0, 1, 2])):
        sentences.insert(source.rng.randint(0, len(sentences)), source.pick(FILLERS))
    if source.chance(0.35):
        # A field nobody listed, so that keys are read from the request and not remembered.
        key = source.word()
        values[key] = VALUES[source.pick(["name", "small", "code", "colour"])](source)
        sentences.append(source.pick(["The {k} is {v}.", "Its {k}: {v}."]).format(
            k=key, v=values[key]))  # fmt: skip
    wanted = source.some(list(values), min(len(values), fields or source.pick([2, 3, 3, 4, 5])))
    listed = ", ".join(wanted)
    if source.chance(0.4):
        listed = ", ".join(wanted[:-1]) + " and " + wanted[-1]
    question = source.template(EXTRACT).format(f=listed, t=" ".join(sentences))
    wanted_values = {key: values[key] for key in wanted}
    text = json.dumps(wanted_values)
    answer: dict = {"role": "assistant", "content": text}
    thinking = source.chance(0.1)
    if thinking:
        answer["reasoning_content"] = f"The keys are {listed}. I copy the values from the text."
    messages = [*with_system(source, [{"role": "user", "content": question}], 0.15), answer]
    return Example(
        "json", messages, thinking=thinking, expect={"text": text, "json": wanted_values}
    )


SUMMARISE = [
    "Summarise: {t}", "Sum this up in one sentence.\n\n{t}", "{t}\n\nSummarise the text.",
    "Give a short summary: {t}", "What is this about? {t}", "{t}\nIn short?", "Shorten this: {t}",
]  # fmt: skip


def summary(source: Source) -> Example:
    """A small report whose first facts are who, what and where; the rest may be dropped."""
    who, where, what = source.person(), source.place(), source.pick(NOUNS)
    day = source.pick(DAYS)
    parts = [
        source.pick([f"On {day}, {who} went to {where}.", f"{who} travelled to {where} on {day}."]),
        source.pick([f"There was a problem with the {what}.", f"The {what} was broken."]),
        source.pick(FILLERS),
        source.pick([f"{who} repaired it.", f"It took {who} {source.number(2, 30)} hours."]),
        source.pick(FILLERS),
    ]
    text = f"{who} went to {where} on {day} and repaired the {what}."
    question = source.template(SUMMARISE).format(t=" ".join(parts))
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
    return Example("summary", with_system(source, messages, 0.15), expect={"text": text})


# what the user says of themselves: (value, statement, reply, question, answer)
MEMORIES: list[tuple[str, str, str, str, str]] = [
    ("person", "My name is {v}.", "Nice to meet you, {v}!", "What is my name?",
     "Your name is {v}."),
    ("place", "I live in {v}.", "{v} sounds nice.", "Where do I live?", "You live in {v}."),
    ("animal", "I have a {v}.", "A {v}! How nice.", "Which animal do I have?", "You have a {v}."),
    ("food", "I like {v}.", "Good to know that you like {v}.", "What do I like?", "You like {v}."),
    ("job", "I work as a {v}.", "A {v}, I see.", "What is my job?", "You work as a {v}."),
    ("code", "My code is {v}.", "I will remember {v}.", "What is my code?", "Your code is {v}."),
    ("small", "I am {v} years old.", "I see, {v}.", "How old am I?", "You are {v} years old."),
    ("colour", "My car is {v}.", "A {v} car, I see.", "What colour is my car?",
     "Your car is {v}."),
    ("name", "My company is called {v}.", "{v} is a good name.", "What is my company called?",
     "Your company is called {v}."),
    ("day", "I will travel on {v}.", "All right, on {v}.", "When will I travel?",
     "You will travel on {v}."),
]  # fmt: skip


def memory(source: Source, turns: int | None = None) -> Example:
    """The user tells things over several turns and then asks for one of them back."""
    told = source.some(MEMORIES, turns or source.pick([1, 2, 2, 3, 4]))
    messages: list[dict] = []
    facts: list[tuple[str, str, str]] = []
    for kind, statement, answer, question, recall in told:
        value = VALUES[kind](source)
        if source.chance(0.25):
            asked, answers = source.pick(TALK)
            messages.append({"role": "user", "content": source.pick(asked)})
            messages.append({"role": "assistant", "content": source.pick(answers)})
        messages.append({"role": "user", "content": statement.format(v=value)})
        messages.append({"role": "assistant", "content": answer.format(v=value)})
        facts.append((question, recall.format(v=value), str(value)))
    if source.chance(0.15):
        return Example("memory", with_system(source, messages), expect={"text": messages[-1]
                       ["content"]})  # fmt: skip
    question, recall, value = source.pick(facts)
    asked = source.pick(["{q}", "{q}", "Do you remember? {q}", "Tell me: {q}"]).format(q=question)
    messages.append({"role": "user", "content": asked})
    messages.append({"role": "assistant", "content": recall})
    thinking = source.chance(0.1)
    if thinking:
        messages[-1]["reasoning_content"] = "The user told me before."
    expect = {"text": recall, "value": value}
    return Example("memory", with_system(source, messages), thinking=thinking, expect=expect)


REPEAT = ["Repeat: {t}", "Say this again: {t}", "Copy this exactly: {t}", "Write: {t}",
          "Echo the following.\n{t}", "Please repeat after me: {t}"]  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _noise(source: Source) -> str:
    """A random string: made-up words, digits, letters in any order."""
    pieces = []
    for _ in range(source.rng.randint(2, 12)):
        roll = source.rng.random()
        if roll < 0.35:
            pieces.append(source.word())
        elif roll < 0.55:
            pieces.append("".join(source.pick(LETTERS) for _ in range(source.rng.randint(2, 6))))
        elif roll < 0.7:
            pieces.append(str(source.number(0, 9999)))
        elif roll < 0.85:
            pieces.append(source.pick(NOUNS))
        else:
            pieces.append(source.invented())
    return " ".join(pieces)


def repeat(source: Source) -> Example:
    """Copying of random strings: the skill that the others stand on."""
    text = _noise(source)
    question = source.template(REPEAT).format(t=text)
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
    return Example("repeat", messages, expect={"text": text})


def lookup(source: Source) -> Example:
    """Keys and values, then one key: plain associative recall."""
    count = source.rng.randint(2, 10)
    style = source.pick(["{k}: {v}", "{k} = {v}", "{k} -> {v}", "{k}, {v}"])
    make: list[Maker] = [Source.word, Source.invented, Source.code, lambda s: s.number(0, 999),
                         lambda s: s.pick(NOUNS)]  # fmt: skip
    key_of, value_of = source.pick(make), source.pick(make)
    table = {str(key_of(source)): str(value_of(source)) for _ in range(count)}
    key = source.pick(list(table))
    lines = "\n".join(style.format(k=k, v=v) for k, v in table.items())
    question = source.pick(["{t}\nWhat is the value of {k}?", "{t}\n{k}?", "Look up {k}.\n{t}"])
    messages = [
        {"role": "user", "content": question.format(t=lines, k=key)},
        {"role": "assistant", "content": table[key]},
    ]
    return Example("lookup", messages, expect={"text": table[key]})


def long_facts(source: Source) -> Example:
    """Many statements (up to the length of the context) and one question."""
    return facts(source, source.rng.randint(16, 120))
