"""`tidemill run`: a streaming chat in the terminal, with the model in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.cli import options
from tidemill.cli.declared import argument, option
from tidemill.cli.reading import edit_lines, read_turn
from tidemill.cli.screen import THINKING
from tidemill.cli.slash import is_command, run_command

if TYPE_CHECKING:
    from tidemill.cli.conversation import Conversation


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
        None, choices=THINKING, help="Of the thinking; default: fold on a terminal."
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
    kv_ram: str | None = options.KV_RAM,
    kv_disk: str | None = options.KV_DISK,
    threads: int | None = options.THREADS,
    tensor_parallel: int = options.TENSOR_PARALLEL,
    pipeline_parallel: int = options.PIPELINE_PARALLEL,
    pipeline_peers: str | None = options.PIPELINE_PEERS,
    speculate: str = options.SPECULATE,
    backend: str = options.BACKEND,
    device: str = options.DEVICE,
    isa: str | None = options.ISA,
    packed_cache: str = options.PACKED_CACHE,
) -> None:
    """Chat with a model in the terminal, or answer one prompt (an argument, or piped in)."""
    from tidemill.base.errors import config_error
    from tidemill.cli.conversation import Conversation
    from tidemill.cli.functions import Functions
    from tidemill.cli.screen import screen_for
    from tidemill.contract.sampling import SamplingParams
    from tidemill.library.locate import locate
    from tidemill.llm import LLM
    from tidemill.loading.hub_name import with_options

    functions = None if tools is None else Functions.of_file(tools)
    output_options: dict[str, Any] = {} if schema is None else {"json_schema": _read_schema(schema)}
    if think is not None:
        output_options["enable_thinking"] = think

    if model is not None and prompt is None and not Path(model).exists():
        _check_is_no_prompt(model)
    piped = None if sys.stdin.isatty() else sys.stdin.read().strip("\n")
    interactive = prompt is None and piped is None
    text = "\n\n".join(part for part in (prompt, piped) if part)
    if not interactive and not text:
        raise config_error(
            "prompt",
            "the prompt is empty: standard input is no terminal and holds no text. Give a prompt "
            "as an argument (tidemill run brook 'PROMPT'), pipe one in, or run this in a terminal",
        )
    sampling: dict[str, Any] = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "max_tokens": max_tokens,
        "seed": seed,
    }
    params = SamplingParams(**{k: v for k, v in sampling.items() if v is not None})
    settings: dict[str, Any] = {
        "quantize": quantize,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
        "max_model_len": max_model_len,
        "kv_memory": options.parse_bytes("kv-memory", kv_memory),
        "kv_ram": options.parse_bytes("kv-ram", kv_ram),
        "kv_disk": kv_disk,
        "threads": threads,
        "tensor_parallel": tensor_parallel,
        "pipeline_parallel": pipeline_parallel,
        "pipeline_peers": pipeline_peers,
        "speculate": speculate,
        "backend": backend,
        "device": device,
        "isa": isa,
        "packed_cache": options.packed_cache(packed_cache),
        "max_num_seqs": 1,
        "progress": _say if verbose else lambda line: None,
    }

    if quantize == "none":  # else what the model was created with
        del settings["quantize"]
    if max_model_len is None:
        del settings["max_model_len"]

    def open_model(named: str | None, file: str | None = None, revision: str | None = None) -> LLM:
        return LLM(locate(with_options(named, file, revision), _say), **settings)

    chat = Conversation(
        open_model(model, file, revision),
        params,
        lambda: screen_for(plain=plain, thinking=thinking),
        lambda call: yes or (interactive and _confirm(call)),
        system=system,
        functions=functions,
        options=output_options,
        stats=stats,
        open_model=open_model,
    )
    try:
        if interactive:
            _chat_loop(chat)
        else:
            if functions is not None and not yes:
                _say("calls are not made: nobody is asked at a terminal; --yes allows them all")
            chat.answer(text)
    finally:
        chat.llm.close()


def _check_is_no_prompt(model: str) -> None:
    """Reject a model argument that looks like a prompt."""
    from tidemill.base.errors import config_error

    if len(model.split()) > 1 or model.endswith(("?", "!")):
        raise config_error(
            "model",
            "the first argument is the model, and this looks like a prompt; name a model before "
            "it: tidemill run brook 'PROMPT'",
        )


def _read_schema(path: str) -> Any:
    from tidemill.base.errors import config_error

    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise config_error("schema", f"--schema {path}: {error.strerror}") from error
    except ValueError as error:
        raise config_error("schema", f"--schema {path} is not valid JSON: {error}") from error


def _confirm(call: str) -> bool:
    try:
        return input(f"  {call}\n  make this call? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print()
        return False


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _chat_loop(chat: Conversation) -> None:
    """Read and answer turns until the user exits."""
    from tidemill.base.errors import TidemillError

    edit_lines()
    exists = chat.llm.template.exists
    kind = "a chat" if exists else "no chat template: it continues your text"
    print(f"{chat.llm.info.model}, {kind}. /help lists commands, Ctrl-D leaves.")
    while (text := read_turn()) is not None:
        if is_command(text):
            if not run_command(chat, text):
                return
        elif text.strip():
            try:
                chat.answer(text)
            except TidemillError as error:
                print(f"{error.message}\n(/clear starts over)", file=sys.stderr)
