"""`tidemill run`: a streaming chat in the terminal, with the model in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from tidemill.cli import options

if TYPE_CHECKING:
    from tidemill.contract.sampling import SamplingParams
    from tidemill.llm import LLM

HELP = """\
/clear   forget the conversation
/stats   show or hide tokens per second
/help    this list
/exit    leave (also Ctrl-D)
Ctrl-C stops an answer. End a line with \\ to go on in the next."""


def run(
    model: str | None = options.MODEL,
    prompt: str | None = typer.Argument(None, help="Answer this and leave.", show_default=False),
    system: str | None = typer.Option(None, help="System message."),
    temperature: float | None = typer.Option(None, help="0 is greedy; default: the model's."),
    top_p: float | None = typer.Option(None, help="Nucleus."),
    top_k: int | None = typer.Option(None, help="Keep this many most likely tokens."),
    min_p: float | None = typer.Option(None, help="Drop tokens less likely than this share."),
    repetition_penalty: float | None = typer.Option(None, help="Above 1 discourages repeats."),
    max_tokens: int | None = typer.Option(None, help="Longest answer."),
    seed: int | None = typer.Option(None, help="Same seed, same answer."),
    think: bool | None = typer.Option(
        None, "--think/--no-think", help="Let the model think first, where its template can."
    ),
    stats: bool = typer.Option(False, help="Show tokens per second after each answer."),
    verbose: bool = typer.Option(False, "-v", "--verbose", help="Say what loading chose."),
    quantize: str = options.QUANTIZE,
    dtype: str = options.DTYPE,
    kv_dtype: str = options.KV_DTYPE,
    max_model_len: int | None = options.MAX_MODEL_LEN,
    kv_memory: str | None = options.KV_MEMORY,
    threads: int | None = options.THREADS,
    backend: str = options.BACKEND,
    device: str = options.DEVICE,
    isa: str | None = options.ISA,
) -> None:
    """Chat with a model in the terminal, or answer one prompt (an argument, or piped in)."""
    from tidemill.base.errors import config_error
    from tidemill.llm import LLM

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
    llm = LLM(
        model,
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
        max_num_seqs=1,
    )
    with llm:
        params = llm.sampling(**{k: v for k, v in wanted.items() if v is not None})
        variables = {} if think is None else {"enable_thinking": think}
        chat = _Chat(llm, params.validate(), system, stats, variables)
        if interactive:
            chat.talk()
        else:
            chat.answer(text)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


@dataclass(slots=True)
class _Chat:
    llm: LLM
    params: SamplingParams
    system: str | None
    stats: bool
    template_variables: dict[str, Any]
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget what was said."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def talk(self) -> None:
        """Turns until the person leaves."""
        from tidemill.base.errors import TidemillError

        _line_editing()
        info = self.llm.info
        kind = "a chat" if self.llm.template.exists else "no chat template: it continues your text"
        print(f"{info.model}, {kind}. /help lists commands.")
        while (text := _read_turn()) is not None:
            if text.startswith("/"):
                if not self._command(text):
                    return
            elif text.strip():
                try:
                    self.answer(text)
                except TidemillError as error:
                    print(f"{error.message}\n(/clear starts over)", file=sys.stderr)

    def _command(self, text: str) -> bool:
        """Run a slash command; False to leave."""
        name = text.strip().lower()
        if name in ("/exit", "/quit", "/bye"):
            return False
        if name == "/clear":
            self.clear()
            print("(forgotten)")
        elif name == "/stats":
            self.stats = not self.stats
            print(f"(stats {'on' if self.stats else 'off'})")
        else:
            print(HELP if name == "/help" else f"no command {name}\n{HELP}")
        return True

    def answer(self, text: str) -> None:
        """Stream one answer to stdout and remember it; Ctrl-C ends it early.

        Raises:
            TidemillError: the turn cannot be answered; the conversation is as it was before.
        """
        from tidemill.base.clock import monotonic

        prompt: Any = text
        if self.llm.template.exists:
            prompt = [*self.messages, {"role": "user", "content": text}]
        started, before = monotonic(), self.llm.stats.generated_tokens
        variables = self.template_variables if isinstance(prompt, list) else {}
        stream = self.llm.stream(prompt, self.params, **variables)
        parts, first = [], None
        stopped = False
        try:
            for part in stream:
                first = first or monotonic()
                parts.append(part)
                print(part, end="", flush=True)
        except KeyboardInterrupt:
            stopped = True
        print(" (stopped)" if stopped else "", flush=True)
        if isinstance(prompt, list):
            self.messages = [*prompt, {"role": "assistant", "content": "".join(parts)}]
        if self.stats and first is not None:
            tokens, rest = self.llm.stats.generated_tokens - before, monotonic() - first
            rate = (tokens - 1) / rest if rest > 0 else 0.0
            ttft = (first - started) * 1000
            _say(f"({tokens} tokens, first after {ttft:.0f} ms, then {rate:.1f} tokens/s)")


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
