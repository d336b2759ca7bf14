"""`tidemill run`: a chat in the terminal, or one answer for a prompt or a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from tidemill.cli import engine_options as opt

if TYPE_CHECKING:
    from tidemill.contract.sampling import SamplingParams
    from tidemill.llm import LLM

_HELP = """\
/clear       forget the conversation
/stats       show tokens per second after each answer, or stop showing them
/help        this list
/exit        leave (Ctrl-D does too)
\"\"\"          begins and ends a text of several lines
Ctrl-C       stops the answer, not the program"""


def run(
    model: str | None = typer.Argument(
        None, help="Folder, .gguf file, bundled name or hub id; default: the bundled model."
    ),
    prompt: str | None = typer.Argument(None, help="Answer this and leave."),
    system: str | None = typer.Option(None, help="System message."),
    temperature: float | None = typer.Option(None, help="0 is greedy; default: the model's."),
    top_p: float | None = typer.Option(None, help="Nucleus; default: the model's."),
    top_k: int | None = typer.Option(None, help="Most likely tokens kept; default: the model's."),
    min_p: float | None = typer.Option(None, help="Share of the best token's probability."),
    seed: int | None = typer.Option(None, help="Makes the answer repeatable."),
    max_tokens: int | None = typer.Option(None, help="Bound of each answer."),
    think: bool | None = typer.Option(
        None, "--think/--no-think", help="Switch reasoning on or off in the model's template."
    ),
    stats: bool = typer.Option(False, help="Show tokens per second."),
    verbose: bool = typer.Option(False, "-v", "--verbose", help="Say what loading chose."),
    backend: str = opt.BACKEND,
    device: str = opt.DEVICE,
    dtype: str = opt.DTYPE,
    quantize: str = opt.QUANTIZE,
    kv_dtype: str = opt.KV_DTYPE,
    max_model_len: int | None = opt.MAX_MODEL_LEN,
    kv_memory: str | None = opt.KV_MEMORY,
    threads: int | None = opt.THREADS,
    isa: str | None = opt.ISA,
) -> None:
    """Chat with a model in the terminal."""
    import msgspec

    from tidemill.cli.machine import parse_bytes
    from tidemill.llm import LLM
    from tidemill.loading import DEFAULT_MODEL

    piped = None if sys.stdin.isatty() else sys.stdin.read().strip()
    wanted = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "seed": seed,
        "max_tokens": max_tokens,
    }
    with LLM(
        model or DEFAULT_MODEL,
        progress=(lambda line: print(line, file=sys.stderr)) if verbose else lambda line: None,
        backend=backend,
        device=device,
        dtype=dtype,
        quantize=quantize,
        kv_dtype=kv_dtype,
        max_model_len=max_model_len,
        kv_memory=parse_bytes("kv-memory", kv_memory),
        threads=threads,
        isa=isa,
        max_num_seqs=1,
    ) as llm:
        given = {name: value for name, value in wanted.items() if value is not None}
        sampling = msgspec.structs.replace(llm.default_sampling(), **given).validate()
        template = {} if think is None else {"enable_thinking": think}
        chat = _Chat(llm, sampling, template, system=system, stats=stats)
        if prompt is None and piped is None:
            _converse(chat)
            return
        text = "\n\n".join(part for part in (prompt, piped) if part)
        if not text:
            raise typer.BadParameter("the prompt is empty", param_hint="PROMPT")
        chat.answer(text)


class _Chat:
    """A conversation with one model, printed as it comes."""

    def __init__(
        self,
        llm: LLM,
        sampling: SamplingParams,
        template: dict[str, Any],
        *,
        system: str | None,
        stats: bool,
    ) -> None:
        self._llm = llm
        self._sampling = sampling
        self._template = template
        self._system = system
        self.stats = stats
        self.messages: list[dict[str, str]] = []
        self.clear()

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def answer(self, text: str) -> None:
        """Print the answer to `text`; both join the conversation, however the answer ended."""
        from tidemill.base.clock import monotonic
        from tidemill.base.errors import TidemillError

        self.messages.append({"role": "user", "content": text})
        shown: list[str] = []
        tokens, start, first = 0, monotonic(), 0.0
        stream = self._llm.stream_chat(self.messages, self._sampling, **self._template)
        try:
            for piece, output in stream:
                first = first or monotonic()
                tokens = len(output.token_ids)
                shown.append(piece)
                print(piece, end="", flush=True)
        except KeyboardInterrupt:
            stream.close()  # type: ignore[attr-defined]
            print(" [stopped]", end="")
        except TidemillError:
            self.messages.pop()
            raise
        print(flush=True)
        self.messages.append({"role": "assistant", "content": "".join(shown)})
        if self.stats and tokens:
            rate = (tokens - 1) / (monotonic() - first) if tokens > 1 else 0.0
            line = f"{tokens} tokens, first after {first - start:.2f} s, then {rate:.1f} tokens/s"
            print(f"[{line}]", file=sys.stderr)


def _read() -> str | None:
    '''One entry of the user's; several lines between """. None at the end of input.'''
    try:
        text = input(">>> ")
        if not text.startswith('"""'):
            return text.strip()
        lines = [text[3:]]
        while not lines[-1].rstrip().endswith('"""'):
            lines.append(input("... "))
    except EOFError:
        return None
    lines[-1] = lines[-1].rstrip().removesuffix('"""')
    return "\n".join(lines).strip()


def _converse(chat: _Chat) -> None:
    import contextlib

    from tidemill.base.errors import TidemillError

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # line editing and history for input()

    print("Ask something. /help lists commands, Ctrl-D leaves.")
    while True:
        try:
            text = _read()
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /exit leaves)")
            continue
        if text is None or text in ("/exit", "/quit", "/bye"):
            return
        if text == "/clear":
            chat.clear()
        elif text == "/stats":
            chat.stats = not chat.stats
        elif text == "/help":
            print(_HELP)
        elif text.startswith("/"):
            print(f"no command {text.split()[0]}; /help lists them")
        elif text:
            try:
                chat.answer(text)
            except TidemillError as error:
                print(f"error: {error.message} (/clear forgets the conversation)", file=sys.stderr)
