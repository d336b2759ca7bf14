"""`tidemill tokenize` and `tidemill render`: token ids and prompts, without loading weights."""

from __future__ import annotations

from tidemill.cli import options
from tidemill.cli.acting import print_json
from tidemill.cli.declared import argument, option

FILE = argument(
    None,
    help="A tokenizer.json, a SentencePiece .model, a GGUF file (a vocabulary alone, too), a "
    "model's folder, or a model's name. Default: the bundled one.",
)


def tokenize(
    file: str | None = FILE,
    special: bool = option(
        True, "--special/--no-special", help="Add the model's own start and end tokens."
    ),
    as_json: bool = option(False, "--json", help="A JSON document with ids and their texts."),
) -> None:
    """Print the token ids of the UTF-8 text on standard input, on one line."""
    import sys

    from tidemill.base.errors import bad_request
    from tidemill.cli.defined import files_of
    from tidemill.loading.locate import DEFAULT_MODEL
    from tidemill.loading.text_side import open_text
    from tidemill.text.tokenizer import Tokenizer

    tokenizer = Tokenizer(open_text(files_of(file) or DEFAULT_MODEL).tokenizer)
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_request(
            None, f"standard input is not UTF-8 at byte {error.start}; convert it first"
        ) from error
    ids = tokenizer.encode(text, add_special=special)
    if as_json:
        print_json({"tokens": ids, "texts": [tokenizer.id_to_token(i) for i in ids]})
    else:
        print(*ids)


def render(
    model: str | None = options.MODEL, chat_template: str | None = options.CHAT_TEMPLATE
) -> None:
    """Print the prompt that the chat request (JSON) on standard input becomes."""
    import sys

    from tidemill.base.errors import bad_request
    from tidemill.grammar.schema import prepared
    from tidemill.server.app import DIALECTS
    from tidemill.server.errors import Rejection
    from tidemill.text.answering import ChatSide

    opened = options.open_text(model, chat_template)
    chat = ChatSide.of(opened.tokenizer, opened.template, prepared)
    dialect_render = DIALECTS[0].render
    assert dialect_render is not None
    try:
        text = dialect_render(opened.template, chat, sys.stdin.buffer.read())
    except Rejection as rejection:
        raise bad_request(rejection.problem.param, rejection.problem.message) from rejection
    sys.stdout.write(text)
