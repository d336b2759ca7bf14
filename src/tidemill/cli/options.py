"""Options that several commands share, and the model argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from click.shell_completion import CompletionItem

from tidemill.cli.declared import argument, complete_files, option
from tidemill.cli.machine import parse_bytes as parse_bytes
from tidemill.deployment.settings import ADMISSION as ADMISSION_SETTINGS
from tidemill.deployment.settings import MODEL as MODEL_SETTINGS
from tidemill.deployment.settings import SERVER as SERVER_SETTINGS
from tidemill.deployment.settings import Setting, keyed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import click

    from tidemill.library.manifest import Definition
    from tidemill.offline.opened_text import OpenedText
    from tidemill.text.template import ChatTemplate


def complete_models(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Offer the names of bundled models and the library's, and files."""
    from tidemill.library.home import default_home, has_models
    from tidemill.loading.locate import bundled_models

    names = [*bundled_models()]
    if has_models(default_home()):
        from tidemill.library.catalog import Library

        names += Library.open().names()
    found = [CompletionItem(name) for name in sorted(names) if name.startswith(typed)]
    return found or complete_files(ctx, param, typed)


MODEL = argument(
    None,
    complete=complete_models,
    help="A name of the library (`tidemill list`), a Hugging Face folder, a .gguf file, or a name "
    "on the hub: owner/name, of GGUF files owner/name:Q4_K_M or owner/name/file.gguf, or an "
    "address there. Default: the bundled one.",
)


def flag(setting: Setting) -> Any:
    """Declare the flag of a setting of the deployment table."""
    return option(
        setting.default,
        *setting.names,
        help=setting.help,
        envvar=setting.envvar,
        choices=setting.kind.choices,
    )


SERVER = {setting.key: flag(setting) for setting in SERVER_SETTINGS if setting.flag}
ADMISSION = {setting.key: flag(setting) for setting in ADMISSION_SETTINGS}
_MODEL = keyed(MODEL_SETTINGS)
FILE = flag(_MODEL["file"])
REVISION = flag(_MODEL["revision"])
BACKEND = flag(_MODEL["backend"])
DEVICE = flag(_MODEL["device"])
DTYPE = flag(_MODEL["dtype"])
QUANTIZE = flag(_MODEL["quantize"])
KV_DTYPE = flag(_MODEL["kv_dtype"])
BLOCK_SIZE = flag(_MODEL["block_size"])
MAX_MODEL_LEN = flag(_MODEL["max_model_len"])
MAX_NUM_SEQS = flag(_MODEL["max_num_seqs"])
MAX_STEP_TOKENS = flag(_MODEL["max_step_tokens"])
KV_MEMORY = flag(_MODEL["kv_memory"])
KV_RAM = flag(_MODEL["kv_ram"])
KV_DISK = flag(_MODEL["kv_disk"])
KV_LISTEN = flag(_MODEL["kv_listen"])
KV_PEERS = flag(_MODEL["kv_peers"])
ROLE = flag(_MODEL["role"])
ADAPTER_MEMORY = flag(_MODEL["adapter_memory"])
THREADS = flag(_MODEL["threads"])
TENSOR_PARALLEL = flag(_MODEL["tensor_parallel"])
PIPELINE_PARALLEL = flag(_MODEL["pipeline_parallel"])
PIPELINE_PEERS = flag(_MODEL["pipeline_peers"])
PREFIX_CACHING = flag(_MODEL["prefix_caching"])
ISA = flag(_MODEL["isa"])
PACKED_CACHE = flag(_MODEL["packed_cache"])
TOOL_FORMAT = flag(_MODEL["tool_format"])
REASONING_FORMAT = flag(_MODEL["reasoning_format"])
CHAT_TEMPLATE = flag(_MODEL["chat_template"])
MAX_ITL_MS = flag(_MODEL["max_itl_ms"])
SPECULATE = flag(_MODEL["speculate"])
LOOKUP_ANSWERS = flag(_MODEL["lookup_answers"])


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


def open_text(
    model: str | Path | None,
    chat_template: str | None = None,
    definition: Definition | None = None,
) -> OpenedText:
    """Open a model's text side.

    Args:
        model: a name or path.
        chat_template: replaces the model's template: the name of another one that it has, or a
            file.
        definition: what the library adds to the model; None: of the model that `model` names.

    Raises:
        TidemillError: the model or the template cannot be used.
    """
    from dataclasses import replace

    from tidemill.library.locate import locate
    from tidemill.offline.opened_text import OpenedText
    from tidemill.text.template import ChatTemplate

    located = locate(model)
    opened = OpenedText.open(located.path).defined(definition or located.definition)
    opened = replace(opened, name=located.name)
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
