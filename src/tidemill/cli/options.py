"""Options that several commands share, and the model argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.cli.declared import argument, option
from tidemill.cli.machine import parse_bytes as parse_bytes
from tidemill.contract.config import BACKENDS, DTYPES, KV_DTYPES, QUANTIZATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemill.offline.opened_text import OpenedText
    from tidemill.text.template import ChatTemplate

MODEL = argument(
    None,
    help="A Hugging Face folder, a .gguf file, or a name on the hub: owner/name, of GGUF files "
    "owner/name:Q4_K_M or owner/name/file.gguf, or an address there. Default: the bundled one.",
)
FILE = option(None, help="Of a model on the hub: which GGUF file, or which folder of its parts.")
REVISION = option(None, help="Of a model on the hub: branch, tag or commit; default: main.")
BACKEND = option(
    "auto",
    choices=BACKENDS,
    help="native (C++), torch, or transformers (slow; for models without a family here); auto: "
    "native, or transformers where a model needs it.",
)
DEVICE = option("cpu", help="cpu, or a torch device for the backends torch and transformers.")
DTYPE = option("auto", choices=DTYPES, help="Computing type.")
QUANTIZE = option(
    "none",
    choices=QUANTIZATIONS,
    help="Quantize float weights at load; `tidemill quantize` writes more types.",
)
KV_DTYPE = option("auto", choices=KV_DTYPES, help="Type of the KV cache.")
BLOCK_SIZE = option(32, help="Tokens per KV block: 16, 32, 64 or 128.")
MAX_MODEL_LEN = option(
    None, help="Tokens a request may use; default: the model's, bounded by memory."
)
MAX_NUM_SEQS = option(256, help="Sequences that may run at once.")
MAX_STEP_TOKENS = option(512, help="Tokens computed per step.")
KV_MEMORY = option(None, help="KV cache size, such as 4GiB; default: from free memory.")
THREADS = option(None, help="Compute threads; default: the CPUs this process may use.")
PREFIX_CACHING = option(
    True, "--prefix-caching/--no-prefix-caching", help="Find blocks of earlier prompts again."
)
ISA = option(
    None,
    help="Force an instruction set: amx, avx512, avx512bf16, avx512bw, avxvnni or avx2 (x86), "
    "i8mm or neon (Arm), portable; `tidemill doctor` shows which run here.",
)
PACKED_CACHE = option(
    "auto",
    envvar="TIDEMILL_PACKED_CACHE",
    help="Folder for packed weights, so that the next start is quick; auto: in the user's cache "
    "directory; off: none.",
)
TOOL_FORMAT = option(
    "auto", help="How the model writes tool calls; auto reads it from the chat template."
)
REASONING_FORMAT = option(
    "auto", help="How the model marks its thinking; auto reads it from the chat template."
)
CHAT_TEMPLATE = option(
    None, help="File with a chat template instead of the model's own, or the name of one it has."
)


def packed_cache(text: str) -> str:
    """Normalize the setting `packed_cache`: ``auto``, ``off`` or an absolute path.

    Raises TidemillError of kind CONFIG.
    """
    from pathlib import Path

    from tidemill.base.errors import config_error

    if text in ("auto", "off"):
        return text
    if not text or (Path(text).exists() and not Path(text).is_dir()):
        raise config_error(
            "packed-cache", f"--packed-cache takes a folder, auto or off; {text!r} is no folder"
        )
    return str(Path(text).absolute())


def open_text(model: str | None, chat_template: str | None = None) -> OpenedText:
    """Open a model's text side; `chat_template` (a name or a file) replaces its template.

    Raises:
        TidemillError: the model or the template cannot be used.
    """
    from dataclasses import replace

    from tidemill.offline.opened_text import OpenedText
    from tidemill.text.template import ChatTemplate

    opened = OpenedText.open(model)
    if chat_template is None:
        return opened
    special, own = opened.tokenizer.special, opened.named_templates.get(chat_template)
    if own is not None:
        return replace(opened, template=ChatTemplate(own, special))
    return replace(opened, template=template_from(chat_template, special))


def template_from(chat_template: str, special: Mapping[str, str]) -> ChatTemplate:
    """Read a chat template from a file; `special` holds its special tokens.

    Raises:
        TidemillError: the file cannot be read or is not a valid template.
    """
    from io import TextIOWrapper
    from pathlib import Path

    from tidemill.base.errors import config_error
    from tidemill.base.files import open_regular
    from tidemill.text.template import MAX_TEMPLATE_CHARS, ChatTemplate

    try:
        with TextIOWrapper(open_regular(Path(chat_template)), encoding="utf-8-sig") as file:
            # One character above the limit is enough to reject the template as too long.
            source = file.read(MAX_TEMPLATE_CHARS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise config_error(
            "chat-template", f"--chat-template {chat_template} cannot be read as text: {error}"
        ) from error
    return ChatTemplate(source, special)
