"""`tidemill run`: a streaming chat in the terminal, with the model in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.cli import options
from tidemill.cli.declared import argument, option

if TYPE_CHECKING:
    from tidemill.cli.conversation import Conversation

HELP = """\
/clear   forget the conversation
/stats   show or hide tokens per second
/help    this list
/exit    leave (also Ctrl-D)
Ctrl-C stops an answer. End a line with \\ to go on in the next."""


def run(
    model: str | None = options.MODEL,
    prompt: str | None = argument(None, help="Answer this and leave."),
    file: str | None = options.FILE,
    revision: str | None = options.REVISION,
    system: str | None = option(None, help="System message."),
    temperature: float | None = option(None, help="0 is greedy; default: the model's."),
    top_p: float | None = option(None, help="Nucleus."),
    top_k: int | None = option(None, help="Keep this many most likely tokens."),
    min_p: float | None = option(None, help="Drop tokens less likely than this share."),
    repetition_penalty: float | None = option(None, help="Above 1 discourages repeats."),
    max_tokens: int | None = option(None, help="Longest answer."),
    seed: int | None = option(None, help="Same seed, same answer."),
    think: bool | None = option(
        None, "--think/--no-think", help="Let the model think first, where its template can."
    ),
    thinking: str | None = option(
        None, help="fold, show or hide the thinking; default: fold on a terminal."
    ),
    schema: str | None = option(None, help="The answer obeys the JSON schema in this file."),
    tools: str | None = option(
        None, help="A Python file whose functions the model may call; you are asked each time."
    ),
    yes: bool = option(False, "--yes", help="Make the model's calls without asking."),
    plain: bool = option(False, help="Text as it comes, no Markdown."),
    stats: bool = option(False, help="Show tokens per second after each answer."),
    verbose: bool = option(False, "-v", "--verbose", help="Say what loading chose."),
    quantize: str = options.QUANTIZE,
    dtype: str = options.DTYPE,
    kv_dtype: str = options.KV_DTYPE,
    max_model_len: int | None = options.MAX_MODEL_LEN,
    kv_memory: str | None = options.KV_MEMORY,
    threads: int | None = options.THREADS,
    backend: str = options.BACKEND,
    device: str = options.DEVICE,
    isa: str | None = options.ISA,
    packed_cache: str = options.PACKED_CACHE,
) -> None:
    """Chat with a model in the terminal, or answer one prompt (an argument, or piped in)."""
    from tidemill.base.errors import config_error
    from tidemill.cli.conversation import Conversation
    from tidemill.cli.functions import Functions
    from tidemill.cli.screen import THINKING, screen_for
    from tidemill.llm import LLM
    from tidemill.loading.hub_name import with_options
    from tidemill.loading.named import locate

    if thinking is not None and thinking not in THINKING:
        raise config_error("thinking", f"--thinking is fold, show or hide, not {thinking!r}")
    functions = None if tools is None else Functions.of_file(tools)
    output_options: dict[str, Any] = {} if schema is None else {"json_schema": _read_schema(schema)}
    if think is not None:
        output_options["enable_thinking"] = think

    piped = None if sys.stdin.isatty() else sys.stdin.read().strip("\n")
    interactive = prompt is None and piped is None
    text = "\n\n".join(part for part in (prompt, piped) if part)
    if not interactive and not text:
        raise config_error("prompt", "the prompt is empty")
    wanted: dict[str, Any] = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "max_tokens": max_tokens,
        "seed": seed,
    }
    path, name = locate(with_options(model, file, revision), _say)
    llm = LLM(
        path,
        served_name=name,
        progress=_say if verbose else lambda line: None,
        quantize=quantize,
        dtype=dtype,
        kv_dtype=kv_dtype,
        max_model_len=max_model_len,
        kv_memory=options.parse_bytes("kv-memory", kv_memory),
        threads=threads,
        backend=backend,
        device=device,
        isa=isa,
        packed_cache=options.packed_cache(packed_cache),
        max_num_seqs=1,
    )
    with llm:
        params = llm.sampling(**{k: v for k, v in wanted.items() if v is not None}).validate()
        chat = Conversation(
            llm,
            params,
            lambda: screen_for(plain=plain, thinking=thinking),
            lambda call: yes or (interactive and _allows(call)),
            system=system,
            functions=functions,
            options=output_options,
            stats=stats,
        )
        if interactive:
            _talk(chat)
        else:
            chat.answer(text)


def _read_schema(path: str) -> Any:
    from tidemill.base.errors import config_error

    try:
        return json.loads(Path(path).read_text())
    except OSError as error:
        raise config_error("schema", f"--schema {path}: {error.strerror}") from error
    except ValueError as error:
        raise config_error("schema", f"--schema {path} is not valid JSON: {error}") from error


def _allows(call: str) -> bool:
    try:
        return input(f"  {call}\n  make this call? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print()
        return False


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _talk(chat: Conversation) -> None:
    """Turns until the person leaves."""
    from tidemill.base.errors import TidemillError

    _line_editing()
    exists = chat.llm.template.exists
    kind = "a chat" if exists else "no chat template: it continues your text"
    print(f"{chat.llm.info.model}, {kind}. /help lists commands.")
    while (text := _read_turn()) is not None:
        if text.startswith("/"):
            if not _command(chat, text):
                return
        elif text.strip():
            try:
                chat.answer(text)
            except TidemillError as error:
                print(f"{error.message}\n(/clear starts over)", file=sys.stderr)


def _command(chat: Conversation, text: str) -> bool:
    """Run a slash command; False to leave."""
    name = text.strip().lower()
    if name in ("/exit", "/quit", "/bye"):
        return False
    if name == "/clear":
        chat.clear()
        print("(forgotten)")
    elif name == "/stats":
        chat.stats = not chat.stats
        print(f"(stats {'on' if chat.stats else 'off'})")
    else:
        print(HELP if name == "/help" else f"no command {name}\n{HELP}")
    return True


def _line_editing() -> None:
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (input() edits lines once it is imported)


def _read_turn() -> str | None:
    """What the person typed (lines ending in a backslash joined); None at the end of input."""
    lines: list[str] = []
    for prompt in _prompts():
        try:
            line = input(prompt)
        except EOFError:
            print()
            return "\n".join(lines) if lines else None
        except KeyboardInterrupt:
            print("\n(/exit leaves)")
            return ""
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])
    return None


def _prompts() -> Iterator[str]:
    yield ">>> "
    while True:
        yield "... "
