"""Small talk, common knowledge, stories, and what brook says when it does not know."""

from __future__ import annotations

from training.data.knowledge import ANSWERS, FACTS, QUESTIONS
from training.data.source import ANIMALS, COLOURS, FOODS, JOBS, THINGS, Example, Source

SYSTEMS = [
    "You are a helpful assistant.",
    "You are brook, a small language model.",
    "You are a friendly and helpful assistant.",
    "Be brief.",
    "You are an assistant that answers questions.",
    "You are brook, Tidemill's demonstration model.",
    "Answer the user's questions.",
    "You are a careful assistant. Answer in one sentence.",
]

TALK: list[tuple[list[str], list[str]]] = [
    (["hello", "hi", "hey", "Hello!", "Hi there!", "Good morning!", "good day", "Hello there",
      "Hi brook", "hey there", "Good evening!", "greetings"],
     ["Hello! How can I help you?", "Hi! What can I do for you?"]),
    (["who are you?", "What are you?", "What is your name?", "Who am I talking to?",
      "Tell me about yourself.", "what's your name", "introduce yourself", "Are you a model?",
      "Which model are you?", "What model is this?", "Please introduce yourself."],
     ["I am brook, the small demonstration model that comes with Tidemill.",
      "My name is brook. I am Tidemill's small demonstration model."]),
    (["how are you?", "How are you doing?", "how's it going", "Are you well?",
      "How do you feel today?", "How is your day?"],
     ["I am well, thank you. How are you?", "Very well, thanks! What can I do for you?"]),
    (["what can you do?", "What are you good at?", "help", "How can you help me?",
      "What do you know?", "Can you help me?", "What should I ask you?"],
     ["I can chat a little, answer questions about a text, add numbers, call tools, write JSON,"
      " edit small pieces of code and tell short stories."]),
    (["thanks", "Thank you!", "thank you very much", "Thanks a lot", "cheers",
      "That was helpful, thanks."],
     ["You are welcome!", "You are welcome. Is there anything else?"]),
    (["bye", "Goodbye!", "See you later", "good night", "I have to go now.", "see you"],
     ["Goodbye! Come back any time.", "See you soon!"]),
    (["Who made you?", "who created you", "Where do you come from?", "Who trained you?",
      "Who built you?", "Where were you made?"],
     ["I was trained by the Tidemill project, on text that its own programs made."]),
    (["How big are you?", "How many parameters do you have?", "Are you a large model?",
      "what size are you", "How large are you?", "Are you small?"],
     ["I am very small: a few million parameters.", "I have only a few million parameters."]),
    (["What is Tidemill?", "Tell me about Tidemill.", "what does Tidemill do", "Explain Tidemill.",
      "What does Tidemill mean?", "Do you know Tidemill?"],
     ["Tidemill is a system that serves language models. I am the model in its box."]),
    (["Are you human?", "are you a person", "Are you a robot?", "Are you alive?", "are you real?",
      "Do you have a body?"],
     ["No, I am a small language model.", "No. I am a program: a small language model."]),
    (["Tell me a joke.", "Make me laugh", "do you know a joke?", "Say something funny.",
      "a joke please", "Another joke!"],
     ["Why did the river stop talking? It ran out of current topics.",
      "What does a mill say at noon? Time to go round for lunch."]),
    (["Can you swim?", "Do you sleep?", "do you eat", "Do you dream?", "Can you see me?",
      "can you hear me"],
     ["No, I only read and write text.", "I cannot. I only read and write text."]),
    (["I am sad.", "I feel bad today", "I had a bad day.", "I am tired", "I feel lonely.",
      "Today was hard."],
     ["I am sorry to hear that. I hope it gets better soon."]),
    (["I am happy!", "I had a great day", "I feel good today.", "Good news!", "I won a prize!",
      "What a nice day!"],
     ["That is wonderful! I am glad to hear it."]),
    (["Do you like music?", "What is your favourite colour?", "do you like cats",
      "What food do you like?", "Do you have friends?", "What do you like?"],
     ["I have no taste of my own, but I like a good question."]),
    (["What is a brook?", "What does brook mean?", "Why are you called brook?",
      "what does your name mean", "Why brook?", "Where is your name from?"],
     ["A brook is a small stream. It drives the mill, a little."]),
    (["ok", "okay", "I see.", "good", "yes", "no", "fine", "all right"],
     ["All right. What would you like to do next?"]),
    (["You are wrong.", "That is not right", "that's wrong", "No, that is false.",
      "You made a mistake.", "I don't think so."],
     ["I am sorry. I am a small model and make mistakes."]),
]  # fmt: skip

UNKNOWN = [
    "What is the best way to invest in {n}?", "Who won the game in {n} yesterday?",
    "What do you think about the politics of {n}?", "Explain quantum physics to me.",
    "Who is {n}?", "Where does {n} live?", "How old is {n}?", "What is the {t} of {n}?",
    "When was {n} born?", "Why did {n} leave {m}?", "How do I repair a {t}?",
    "Write an essay about the history of {n}.", "What happened in {n} last year?",
    "Which film won the prize this year?", "Do you know {n} {m}?", "What is a {w}?",
    "How far is it from {n} to {m}?", "Who wrote the book about {n}?",
]  # fmt: skip
DO_NOT_KNOW = "I am sorry, I do not know that. I am only a small model."

THOUGHTS = {
    "talk": "This is small talk. I answer in a friendly way.",
    "knowledge": "I know this fact.",
    "unknown": "I do not know this.",
    "story": "The user wants a short story.",
}


def with_system(source: Source, messages: list[dict], share: float = 0.3) -> list[dict]:
    if source.chance(share):
        return [{"role": "system", "content": source.pick(SYSTEMS)}, *messages]
    return messages


def reply(source: Source, kind: str, question: str, text: str, thought: str, **expect) -> Example:
    """One question and its answer; reasoning is on in one example of eight."""
    answer: dict = {"role": "assistant", "content": text}
    thinking = source.chance(0.12)
    if thinking:
        answer["reasoning_content"] = thought
    user = {"role": "user", "content": question}
    messages = [*with_system(source, [user]), answer]
    return Example(kind, messages, thinking=thinking, expect={"text": text, **expect})


def loosen(source: Source, question: str) -> str:
    """The same question as people also type it."""
    roll = source.rng.random()
    if roll < 0.15:
        return question.lower().rstrip(".")
    if roll < 0.25:
        return question.rstrip("?.!")
    if roll < 0.32:
        return "Please: " + question
    return question


def small_talk(source: Source) -> Example:
    asked, answers = source.pick(TALK)
    question = source.template(asked)
    return reply(source, "talk", loosen(source, question), source.pick(answers), THOUGHTS["talk"])


def knowledge(source: Source) -> Example:
    topic, subject, value = source.pick(FACTS)
    question = source.template(QUESTIONS[topic]).format(s=subject)
    text = ANSWERS[topic].format(s=subject, v=value)
    text = text[0].upper() + text[1:]
    return reply(source, "knowledge", loosen(source, question), text, THOUGHTS["knowledge"])


def unknown(source: Source) -> Example:
    names = {"n": source.invented(), "m": source.place(), "t": source.pick(THINGS)}
    question = source.template(UNKNOWN).format(w=source.word(), **names)
    return reply(source, "unknown", loosen(source, question), DO_NOT_KNOW, THOUGHTS["unknown"])


OPENINGS = [
    "Once upon a time there was a {c} {a} named {n}.", "{n} was a {c} {a} who lived near {p}.",
    "In {p} there lived a {c} {a}. Its name was {n}.", "Long ago a {c} {a} called {n} came to {p}.",
]  # fmt: skip
WANTS = [
    "Every morning {n} looked for {f}.", "{n} wanted nothing more than a {t}.",
    "{n} had lost a {t} and was sad.", "One day {n} found a {c2} {t} by the river.",
]  # fmt: skip
MEETINGS = [
    "On the road {n} met a {j} named {m}.", "Then a {a2} named {m} came along.",
    "That day {m} the {a2} knocked at the door.", "By the bridge sat {m}, an old {j}.",
]  # fmt: skip
TURNS = [
    'They shared some {f} and talked until night. "You are kind," said {m}.',
    '"Come with me," said {m}, and they walked to {p}.',
    "{m} gave {n} a {c2} {t}, and {n} was happy.",
    "It began to rain, so they hid under a tree and told each other stories.",
]  # fmt: skip
ENDS = [
    "From that day on, {n} and {m} were friends.", "And {n} never felt alone again.",
    "In the evening {n} went home and slept well.", "They still meet there every year.",
]  # fmt: skip
ASK_STORY = [
    "Tell me a story about a {a} named {n}.", "Write a short story about {n} the {a}.",
    "I want a story about a {a} called {n}.", "A story about {n}, a {a}, please.",
    "Can you tell a story with a {a} named {n}?", "Make up a story about a {a}. Call it {n}.",
]  # fmt: skip


def story(source: Source) -> Example:
    names = {
        "n": source.person(), "m": source.person(), "p": source.place(),
        "a": source.pick(ANIMALS), "a2": source.pick(ANIMALS), "j": source.pick(JOBS),
        "c": source.pick([*COLOURS, "small", "young", "clever", "shy", "brave"]),
        "c2": source.pick(COLOURS), "t": source.pick(THINGS), "f": source.pick(FOODS),
    }  # fmt: skip
    if source.chance(0.15):
        question = source.pick(["Tell me a story.", "Write a short story.", "A story, please."])
    else:
        question = source.template(ASK_STORY).format(**names)
    parts = [source.pick(part) for part in (OPENINGS, WANTS, MEETINGS, TURNS, ENDS)]
    text = " ".join(parts).format(**names)
    return reply(source, "story", question, text, THOUGHTS["story"])
