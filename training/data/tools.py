"""Tools and when to call them: one call, several, none; and answers from a tool's result.

Half of the tools are everyday ones under many names; the other half are made up, name,
description and parameters, so that a call can only be right by reading its schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from training.data.chat import DO_NOT_KNOW, TALK, THOUGHTS, loosen, with_system
from training.data.context import VALUES
from training.data.knowledge import ANSWERS, FACTS, QUESTIONS
from training.data.source import CITIES, NOUNS, Example, Source, held_out, words

LANGUAGES = words("French German Spanish Italian Polish Dutch Greek Turkish Danish Swedish")
UNITS = ["celsius", "fahrenheit"]
CURRENCIES = ["USD", "EUR", "GBP", "JPY", "CHF", "SEK", "PLN", "CAD"]
ROOMS = ["kitchen", "bedroom", "bathroom", "office", "garage", "hall", "garden", "cellar"]


@dataclass(frozen=True)
class Parameter:
    """A parameter's JSON type, description and how its values are drawn."""

    kind: str
    about: str
    value: Callable[[Source], Any]
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tool:
    """A tool: names it may carry, what it does, parameters, and requests that need it.

    A request names the parameters that it mentions; those are the call's arguments.
    """

    names: tuple[str, ...]
    about: str
    parameters: dict[str, Parameter]
    requests: tuple[str, ...]
    result: tuple[str, ...] = ("status",)


def _p(kind: str, about: str, value: str | Callable, choices: tuple[str, ...] = ()) -> Parameter:
    return Parameter(kind, about, VALUES[value] if isinstance(value, str) else value, choices)


def _time(source: Source) -> str:
    return f"{source.number(0, 23):02d}:{source.pick(['00', '15', '30', '45'])}"


def _city(source: Source) -> str:
    return source.pick(CITIES) if source.chance(0.3) and not source.evaluation else source.place()


def _text(source: Source) -> str:
    return " ".join(
        source.pick([source.pick(NOUNS), source.word(), source.pick(["my", "the", "new", "old"])])
        for _ in range(source.rng.randint(1, 4))
    )


CITY = _p("string", "The city", _city)
EVERYDAY = [
    Tool(("get_weather", "weather_lookup", "current_weather", "fetch_weather", "getWeather",
          "get_current_weather", "weather_now"), "Get the current weather of a city.",
         {"city": CITY},
         ("What is the weather in {city}?", "How is the weather in {city}?",
          "weather in {city}", "Is it raining in {city}?", "What's the weather like in {city}?",
          "Tell me the weather in {city}.", "Do I need a coat in {city}?"),
         ("temperature", "condition")),
    Tool(("get_weather", "forecast", "get_forecast", "weather_forecast", "getForecast"),
         "Get the weather forecast of a place.",
         {"location": CITY, "unit": _p("string", "Unit", lambda s: s.pick(UNITS), tuple(UNITS))},
         ("What is the weather in {location} in {unit}?", "Forecast for {location}, in {unit}.",
          "Give me the weather in {location} in {unit}.", "What will the weather be in {location}?",
          "Forecast for {location}, please."), ("temperature", "condition")),
    Tool(("set_timer", "start_timer", "timer", "create_timer", "setTimer"), "Start a timer.",
         {"minutes": _p("integer", "Length in minutes", "small")},
         ("Set a timer for {minutes} minutes.", "Start a timer of {minutes} minutes.",
          "Timer: {minutes} minutes", "Wake me in {minutes} minutes.",
          "I need a timer for {minutes} minutes.")),
    Tool(("set_alarm", "create_alarm", "alarm", "setAlarm", "add_alarm"), "Set an alarm.",
         {"time": _p("string", "Time as HH:MM", _time)},
         ("Set an alarm for {time}.", "Wake me at {time}.", "Alarm at {time}, please.",
          "I have to get up at {time}.", "Set my alarm to {time}.")),
    Tool(("send_email", "send_mail", "email", "mail_send", "sendEmail"), "Send an e-mail.",
         {"to": _p("string", "Who gets it", "person"),
          "subject": _p("string", "Subject line", _text)},
         ("Send an email to {to} about {subject}.", "Write {to} a mail with the subject {subject}.",
          "Email {to}: {subject}", "Mail {to} about {subject}.",
          "Please send {to} an email about {subject}.")),
    Tool(("send_message", "message", "text_contact", "sendMessage"), "Send a message to a person.",
         {"recipient": _p("string", "The person", "person"),
          "text": _p("string", "The message", _text)},
         ("Tell {recipient}: {text}", "Send {recipient} the message {text}.",
          "Message {recipient}: {text}", "Write to {recipient}: {text}")),
    Tool(("search_flights", "find_flights", "flight_search", "searchFlights"), "Find flights.",
         {"origin": _p("string", "From", _city), "destination": _p("string", "To", _city)},
         ("Find a flight from {origin} to {destination}.", "Flights from {origin} to"
          " {destination}?",
          "I want to fly from {origin} to {destination}.", "Which flights go from {origin} to"
          " {destination}?", "I need to get to {destination} from {origin} by plane."),
         ("flight", "price")),
    Tool(("convert_currency", "currency", "exchange", "convertCurrency"), "Convert money.",
         {"amount": _p("number", "How much", "big"),
          "from": _p("string", "Currency", lambda s: s.pick(CURRENCIES[:4])),
          "to": _p("string", "Currency", lambda s: s.pick(CURRENCIES[4:]))},
         ("Convert {amount} {from} to {to}.", "How much is {amount} {from} in {to}?",
          "Change {amount} {from} into {to}.", "What are {amount} {from} in {to}?"), ("amount",)),
    Tool(("translate", "translate_text", "translator", "translateText"), "Translate a text.",
         {"text": _p("string", "The text", _text),
          "language": _p("string", "Target language", lambda s: s.pick(LANGUAGES))},
         ("Translate {text} into {language}.", "What is {text} in {language}?",
          "How do you say {text} in {language}?", "Say {text} in {language}."), ("translation",)),
    Tool(("play_song", "play_music", "music_play", "playSong"), "Play a song.",
         {"title": _p("string", "Title of the song", "full"),
          "artist": _p("string", "Who sings it", "name")},
         ("Play {title} by {artist}.", "Play {title}.", "I want to hear {title} by {artist}.",
          "Put on {title} by {artist}.", "Let me hear {title}.")),
    Tool(("turn_on_light", "light_on", "switch_light", "lights"), "Switch the light of a room.",
         {"room": _p("string", "The room", lambda s: s.pick(ROOMS)),
          "state": _p("string", "on or off", lambda s: s.pick(["on", "off"]), ("on", "off"))},
         ("Turn {state} the light in the {room}.", "Switch the {room} light {state}.",
          "Light {state} in the {room}.", "Make the light in the {room} go {state}.")),
    Tool(("set_temperature", "thermostat", "heat_room", "setTemperature"), "Heat a room.",
         {"room": _p("string", "The room", lambda s: s.pick(ROOMS)),
          "degrees": _p("integer", "Degrees", "small")},
         ("Set the {room} to {degrees} degrees.", "Heat the {room} to {degrees} degrees.",
          "Make it {degrees} degrees in the {room}.", "I want {degrees} degrees in the {room}.")),
    Tool(("add_event", "create_event", "calendar_add", "createEvent"), "Add to the calendar.",
         {"title": _p("string", "What", _text), "day": _p("string", "Day", "day"),
          "time": _p("string", "Time as HH:MM", _time)},
         ("Add {title} on {day} at {time}.", "Put {title} in my calendar for {day}, {time}.",
          "On {day} at {time} I have {title}. Add it.", "Add {title} on {day}.")),
    Tool(("get_stock_price", "stock_price", "stocks", "getStockPrice"), "Get the price of a stock.",
         {"symbol": _p("string", "Ticker symbol", lambda s: s.code()[:2] + s.pick("XYZQ"))},
         ("What is the price of {symbol} stock?", "Stock price of {symbol}?",
          "How is the {symbol} stock doing?", "Look up the stock {symbol}."), ("price",)),
    Tool(("search_web", "web_search", "search", "searchWeb"), "Search the web.",
         {"query": _p("string", "What to look for", _text)},
         ("Search the web for {query}.", "Look up {query} online.", "Search for {query}.",
          "Find {query} on the web."), ("title", "url")),
    Tool(("get_order", "order_status", "track_order", "getOrder"), "Get the state of an order.",
         {"order_id": _p("string", "Number of the order", "code")},
         ("Where is my order {order_id}?", "What is the status of order {order_id}?",
          "Track {order_id}.", "Has order {order_id} been sent?"), ("status", "day")),
    Tool(("book_table", "reserve_table", "restaurant_booking", "bookTable"), "Book a table.",
         {"restaurant": _p("string", "Restaurant", "name"),
          "people": _p("integer", "How many people", lambda s: s.number(1, 12)),
          "time": _p("string", "Time as HH:MM", _time)},
         ("Book a table at {restaurant} for {people} at {time}.",
          "A table for {people} people at {restaurant} at {time}, please.",
          "Reserve {restaurant} for {people} people.", "We are {people} and want to eat at"
          " {restaurant} at {time}."), ("status", "table")),
    Tool(("calculate", "calculator", "add_numbers", "compute_sum"), "Add two numbers.",
         {"a": _p("integer", "First number", "big"), "b": _p("integer", "Second number", "big")},
         ("Use the tool to add {a} and {b}.", "Calculate {a} plus {b} with the tool.",
          "Add {a} and {b} with your calculator."), ("result",)),
    Tool(("define_word", "dictionary", "define", "lookup_word"), "Define a word.",
         {"word": _p("string", "The word", "word")},
         ("Define {word}.", "What does {word} mean?", "Look up the word {word}.",
          "Give me the definition of {word}."), ("definition",)),
    Tool(("get_time", "time_in", "current_time", "getTime"), "Get the time in a city.",
         {"city": CITY},
         ("What time is it in {city}?", "Time in {city}?", "Tell me the time in {city}.",
          "How late is it in {city}?"), ("time",)),
]  # fmt: skip

VERBS = words(
    "get find open close start stop add delete update check send move count list print rename "
    "lock unlock load save merge split clean test build paint fetch share pause reset archive "
    "export import publish approve reject assign measure"
)
MADE_PARAMETERS = [
    ("name", "string", "name"), ("id", "string", "code"), ("color", "string", "colour"),
    ("count", "integer", "small"), ("size", "integer", "big"), ("owner", "string", "person"),
    ("city", "string", "place"), ("day", "string", "day"), ("label", "string", "word"),
    ("level", "integer", "small"), ("target", "string", "name"), ("code", "string", "code"),
    ("limit", "integer", "big"), ("month", "string", "month"), ("type", "string", "noun"),
]  # fmt: skip


def _join(style: float, verb: str, noun: str) -> str:
    if style < 0.7:
        return f"{verb}_{noun}"
    return verb + noun.capitalize() if style < 0.85 else f"{noun}_{verb}"


def _made_up(source: Source, verb: str = "", noun: str = "") -> Tool:
    """A tool nobody has seen before: its verb, object, parameters and wording are drawn."""
    verb = verb or source.pick(VERBS)
    noun = noun or (source.word() if source.chance(0.3) else source.pick(NOUNS))
    style = source.rng.random()
    name = _join(style, verb, noun)
    parameters = {}
    for key, kind, value in source.some(MADE_PARAMETERS, source.pick([1, 1, 2, 2, 3])):
        shown = source.word() if source.chance(0.2) else key
        about = source.pick([f"The {shown}", f"{shown} of the {noun}", shown.capitalize()])
        parameters[shown] = _p(kind, about, value)
    first, *rest = parameters
    tail = "".join(
        source.pick([f", {k} {{{k}}}", f" with {k} {{{k}}}", f" and {k} {{{k}}}"]) for k in rest
    )
    wordings = (
        f"{verb.capitalize()} the {noun} with {first} {{{first}}}{tail}.",
        f"Please {verb} the {noun} {{{first}}}{tail}.",
        f"I want to {verb} the {noun} {{{first}}}{tail}.",
        f"{verb} {noun} {{{first}}}{tail}",
        f"Can you {verb} the {noun} {{{first}}}{tail}?",
        f"Would you {verb} a {noun} with {first} {{{first}}}{tail}?",
    )
    article = "an" if noun[0] in "aeiou" else "a"
    about = f"{verb.capitalize()} {source.pick([article, 'the'])} {noun}."
    return Tool((name,), about, parameters, wordings, source.pick([("status",), ("result", "id")]))


@dataclass
class Offer:
    """A tool under the name it has in one conversation."""

    name: str
    tool: Tool

    def schema(self, source: Source) -> dict[str, Any]:
        """The tool in the OpenAI layout."""
        properties = {}
        described = source.chance(0.6)
        for key, parameter in self.tool.parameters.items():
            properties[key] = {"type": parameter.kind}
            if described:
                properties[key]["description"] = parameter.about
            if parameter.choices:
                properties[key]["enum"] = list(parameter.choices)
        parameters = {"type": "object", "properties": properties}
        parameters["required"] = list(self.tool.parameters)[:1]
        function = {"name": self.name, "description": self.tool.about, "parameters": parameters}
        return {"type": "function", "function": function}


def _offer(source: Source, made_up: float = 0.5) -> Offer:
    """A tool whose name is on this source's side of the split."""
    while True:
        tool = _made_up(source) if source.chance(made_up) else source.pick(EVERYDAY)
        name = source.pick(tool.names)
        if len(tool.names) > 1 and source.chance(0.4):
            # Names nobody could remember must be read from the schema.
            name = source.pick([f"{name}_{source.word()}", f"{source.word()}_{name}",
                                f"{name}{source.invented()}"])  # fmt: skip
        if held_out("tool", name) == source.evaluation:
            return Offer(name, tool)


def offers(source: Source, count: int) -> list[Offer]:
    found: list[Offer] = []
    while len(found) < count:
        offer = _offer(source)
        if all(o.name != offer.name and o.tool.about != offer.tool.about for o in found):
            found.append(offer)
    return found


def ask(source: Source, tool: Tool) -> tuple[str, dict[str, Any]]:
    """A request in words and the arguments that it mentions, in the schema's order."""
    wording = source.template(tool.requests)
    mentioned = [key for key in tool.parameters if f"{{{key}}}" in wording]
    arguments = {key: tool.parameters[key].value(source) for key in mentioned}
    text = wording
    for key, value in arguments.items():
        text = text.replace(f"{{{key}}}", str(value))
    return text, arguments


def call_message(calls: list[tuple[str, dict]], thought: str | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    message["tool_calls"] = [
        {"type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments in calls
    ]
    if thought:
        message["reasoning_content"] = thought
    return message


def _expect(calls: list[tuple[str, dict]]) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}


def _history(source: Source, user: dict[str, Any]) -> list[dict[str, Any]]:
    """The request, in one case of seven after a turn of small talk; a system prompt at times."""
    messages = [user]
    if source.chance(0.15):
        asked, answers = source.pick(TALK)
        before = {"role": "user", "content": source.pick(asked)}
        messages = [before, {"role": "assistant", "content": source.pick(answers)}, user]
    return with_system(source, messages, 0.25)


def one_call(source: Source) -> Example:
    """One of one to four tools fits the request."""
    found = offers(source, source.pick([1, 1, 2, 2, 3, 4]))
    chosen = source.pick(found)
    question, arguments = ask(source, chosen.tool)
    thinking = source.chance(0.12)
    thought = f"The tool {chosen.name} fits." if thinking else None
    calls = [(chosen.name, arguments)]
    user = {"role": "user", "content": question}
    messages = [*_history(source, user), call_message(calls, thought)]
    tools = [offer.schema(source) for offer in found]
    return Example("tool_call", messages, tools, thinking, _expect(calls))


def several_calls(source: Source) -> Example:
    """Two or three calls in one answer: of one tool, or of two tools."""
    found = offers(source, source.pick([1, 2, 2, 3]))
    calls, words = [], []
    same = source.chance(0.5) or len(found) == 1
    chosen = source.pick(found)
    order = [chosen] * source.pick([2, 2, 3]) if same else source.some(found, 2)
    for offer in order:
        question, arguments = ask(source, offer.tool)
        if (offer.name, arguments) not in calls:
            words.append(question)
            calls.append((offer.name, arguments))
    joiner = source.pick([" ", " And: ", " Then: ", "\n", " Also: "])
    user = {"role": "user", "content": joiner.join(words)}
    if same and len(chosen.tool.parameters) == 1 and source.chance(0.6):
        key, parameter = next(iter(chosen.tool.parameters.items()))
        values = list(dict.fromkeys(parameter.value(source) for _ in range(len(order) + 2)))[:3]
        values = values[: max(2, len(order))]
        wording = source.pick([w for w in chosen.tool.requests if f"{{{key}}}" in w])
        listed = ", ".join(map(str, values[:-1])) + f" and {values[-1]}"
        user["content"] = wording.replace(f"{{{key}}}", listed)
        calls = [(chosen.name, {key: value}) for value in values]
    thinking = source.chance(0.1)
    thought = f"I need {len(calls)} calls." if thinking else None
    messages = [*_history(source, user), call_message(calls, thought)]
    tools = [offer.schema(source) for offer in found]
    return Example("tool_calls", messages, tools, thinking, _expect(calls))


NO_TOOL = "I am sorry, none of my tools can do that."


def no_call(source: Source) -> Example:
    """Tools are there but the request is talk, a known fact, or nothing they can do."""
    found = offers(source, source.pick([1, 1, 2, 3]))
    roll = source.rng.random()
    if roll < 0.4:
        asked, answers = source.pick(TALK)
        question, text = loosen(source, source.template(asked)), source.pick(answers)
        thought = THOUGHTS["talk"]
    elif roll < 0.65:
        topic, subject, value = source.pick(FACTS)
        question = source.template(QUESTIONS[topic]).format(s=subject)
        text = ANSWERS[topic].format(s=subject, v=value)
        text, thought = text[0].upper() + text[1:], THOUGHTS["knowledge"]
    elif roll < 0.9:
        while True:
            other = _offer(source)
            if all(_differs(other.tool, offer.tool) for offer in found):
                break
        question, _ = ask(source, other.tool)
        text, thought = NO_TOOL, "No tool fits."
    else:
        question = f"Who is {source.invented()}?"
        text, thought = DO_NOT_KNOW, THOUGHTS["unknown"]
    thinking = source.chance(0.1)
    answer = {"role": "assistant", "content": text}
    if thinking:
        answer["reasoning_content"] = thought
    messages = [*_history(source, {"role": "user", "content": question}), answer]
    tools = [offer.schema(source) for offer in found]
    return Example("no_call", messages, tools, thinking, {"text": text, "calls": []})


# Verbs so near in meaning that a tool of the one may serve a request for the other.
NEAR_VERBS = [{"get", "find", "fetch", "check", "load", "count"}, {"send", "share", "move"},
              {"delete", "clean", "reset"}, {"archive", "save", "export"}, {"build", "add"},
              {"publish", "share", "approve"}, {"measure", "count", "check", "test"},
              {"update", "rename", "assign"}]  # fmt: skip


def _near(source: Source, tool: Tool) -> Tool:
    """A made-up tool that shares the verb or the noun of another, but not what it does."""
    verb, *_, noun = tool.about.lower().rstrip(".").split()
    if source.chance(0.5):
        near = {v for group in NEAR_VERBS if verb in group for v in group} | {verb}
        return _made_up(source, verb=source.pick([v for v in VERBS if v not in near]), noun=noun)
    return _made_up(source, verb=verb, noun=source.pick([n for n in NOUNS if n != noun]))


def _unfit(source: Source, found: list[Offer]) -> str:
    """A request that none of the offered tools serves; at times one that almost fits."""
    made_up = [offer.tool for offer in found if offer.tool.about.split()[0].lower() in VERBS
               and len(offer.tool.names) == 1]  # fmt: skip
    while True:
        if made_up and source.chance(0.2):
            other = _near(source, source.pick(made_up))
            if all(other.about[:-1].split()[::2] != o.tool.about[:-1].split()[::2] for o in found):
                break
        else:
            other = _offer(source).tool
            if all(_differs(other, offer.tool) for offer in found):
                break
    return ask(source, other)[0]


def no_fit(source: Source) -> Example:
    """A request that needs a tool, but none of those offered; the hardest case of no call."""
    found = offers(source, source.pick([1, 1, 2, 3, 4]))
    question = _unfit(source, found)
    thinking = source.chance(0.12)
    answer = {"role": "assistant", "content": NO_TOOL}
    if thinking:
        answer["reasoning_content"] = "No tool fits."
    messages = [*_history(source, {"role": "user", "content": question}), answer]
    tools = [offer.schema(source) for offer in found]
    return Example("no_fit", messages, tools, thinking, {"text": NO_TOOL, "calls": []})


def turns(source: Source) -> Example:
    """Several requests to the same tools, as often beyond them as not; every turn is learned.

    One request per list of tools taught brook to call always or to refuse always. Here the list
    stays and the request decides.
    """
    found = offers(source, source.pick([1, 1, 2, 2, 3, 4]))
    unused = source.some(found, len(found))
    messages: list[dict[str, Any]] = []
    calls: list[tuple[str, dict]] = []
    for _ in range(source.rng.randint(3, 4 + len(found))):
        roll, calls = source.rng.random(), []
        if roll < 0.45:
            # Each tool is asked once before any is asked again: what fits is to be seen from its
            # description and not from an earlier call.
            offer = unused.pop() if unused else source.pick(found)
            question, arguments = ask(source, offer.tool)
            calls = [(offer.name, arguments)]
            answer = call_message(calls)
        elif roll < 0.9:
            question, answer = _unfit(source, found), {"role": "assistant", "content": NO_TOOL}
        else:
            asked, answers = source.pick(TALK)
            question = loosen(source, source.template(asked))
            answer = {"role": "assistant", "content": source.pick(answers)}
        messages += [{"role": "user", "content": question}, answer]
    tools = [offer.schema(source) for offer in found]
    expect = {"text": messages[-1]["content"], **_expect(calls)}
    messages = with_system(source, messages, 0.25)
    return Example("turns", messages, tools, expect=expect, every_turn=True)


def _differs(a: Tool, b: Tool) -> bool:
    """Whether two tools do different things, by the words of their names and descriptions."""
    small = {"the", "a", "of", "get", "find", "set", "add", "search", "in", "an", "to", "current"}

    def words(tool: Tool) -> set[str]:
        text = " ".join([tool.about, *tool.names]).lower().replace("_", " ").replace(".", " ")
        return set(text.split()) - small

    return not words(a) & words(b)


RESULTS: dict[str, Callable[[Source], Any]] = {
    "status": lambda s: s.pick(["ok", "done", "sent", "failed", "waiting"]),
    "temperature": VALUES["small"], "price": VALUES["big"], "amount": VALUES["big"],
    "condition": lambda s: s.pick(["rain", "snow", "sun", "fog", "wind", "clouds"]),
    "flight": VALUES["code"], "translation": VALUES["word"], "title": VALUES["full"],
    "url": lambda s: f"{s.word()}.example", "day": VALUES["day"], "table": VALUES["small"],
    "result": VALUES["big"], "definition": lambda s: f"a kind of {s.pick(NOUNS)}",
    "time": _time, "id": VALUES["code"],
}  # fmt: skip


def from_result(source: Source) -> Example:
    """A call was made and its result came back; the answer reports the result."""
    found = offers(source, source.pick([1, 1, 2]))
    chosen = source.pick(found)
    question, arguments = ask(source, chosen.tool)
    key = source.word() if source.chance(0.2) else None
    result = {name: RESULTS[name](source) for name in chosen.tool.result}
    if key:
        result[key] = source.pick([source.invented(), source.number(0, 999)])
    listed = [f"the {name} is {value}" for name, value in result.items()]
    text = ", ".join(listed[:-1]) + (" and " if len(listed) > 1 else "") + listed[-1] + "."
    text = text[0].upper() + text[1:]
    messages = [
        *with_system(source, [{"role": "user", "content": question}], 0.25),
        call_message([(chosen.name, arguments)]),
        {"role": "tool", "content": json.dumps(result)},
        {"role": "assistant", "content": text},
    ]
    tools = [offer.schema(source) for offer in found]
    return Example("tool_result", messages, tools, expect={"text": text, "calls": []})
