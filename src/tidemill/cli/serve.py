"""`tidemill serve`: the OpenAI API over HTTP."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.log import get_logger, log_format
from tidemill.cli import locks, options
from tidemill.cli.declared import option

if TYPE_CHECKING:
    from tidemill.library.locate import Located
    from tidemill.server.access.limits import Limits
    from tidemill.server.host.engine_loader import TextSide

log = get_logger(__name__)


def serve(
    model: str | None = options.MODEL,
    file: str | None = options.FILE,
    revision: str | None = options.REVISION,
    host: str = options.SERVER["host"],
    port: int = options.SERVER["port"],
    served_name: tuple[str, ...] = option(
        (),
        "--served-name",
        "--served-model-name",
        help="Name clients use, the first one in answers; repeatable. Default: the model's.",
    ),
    backend: str = options.BACKEND,
    device: str = options.DEVICE,
    dtype: str = options.DTYPE,
    quantize: str = options.QUANTIZE,
    kv_dtype: str = options.KV_DTYPE,
    block_size: int = options.BLOCK_SIZE,
    max_model_len: int | None = options.MAX_MODEL_LEN,
    max_num_seqs: int = options.MAX_NUM_SEQS,
    max_step_tokens: int = options.MAX_STEP_TOKENS,
    kv_memory: str | None = options.KV_MEMORY,
    threads: int | None = options.THREADS,
    prefix_caching: bool = options.PREFIX_CACHING,
    isa: str | None = options.ISA,
    packed_cache: str = options.PACKED_CACHE,
    chat_template: str | None = options.CHAT_TEMPLATE,
    tool_format: str = options.TOOL_FORMAT,
    reasoning_format: str = options.REASONING_FORMAT,
    max_itl_ms: float | None = options.MAX_ITL_MS,
    ttft_objective_ms: float | None = options.ADMISSION["ttft_objective_ms"],
    max_queue_tokens: int | None = options.ADMISSION["max_queue_tokens"],
    max_queue_time: float | None = options.ADMISSION["max_queue_time"],
    stall_timeout: float = options.SERVER["stall_timeout"],
    drain_timeout: float = options.SERVER["drain_timeout"],
    api_key: tuple[str, ...] = locks.API_KEY,
    api_keys: Path | None = locks.API_KEYS,
    share_prefix_cache: bool = locks.SHARE_PREFIX_CACHE,
    tls_cert: Path | None = locks.TLS_CERT,
    tls_key: Path | None = locks.TLS_KEY,
    tls_client_ca: Path | None = locks.TLS_CLIENT_CA,
    cors_origin: tuple[str, ...] = locks.CORS_ORIGIN,
    allowed_host: tuple[str, ...] = locks.ALLOWED_HOST,
    trusted_proxy: tuple[str, ...] = locks.TRUSTED_PROXY,
    insecure: bool = locks.INSECURE,
    limit: tuple[str, ...] = locks.LIMIT,
    log_level: str = options.SERVER["log_level"],
    log_format: str = options.SERVER["log_format"],
) -> None:
    """Serve a model through the OpenAI API (default: the bundled one, on 127.0.0.1:8000)."""
    from tidemill.base.errors import config_error
    from tidemill.base.files import opened_files
    from tidemill.base.log import log_line, set_up_logging
    from tidemill.base.stderr import guard_stderr
    from tidemill.contract.config import EngineConfig
    from tidemill.deployment.security import KEY_VARIABLE, SecuritySettings
    from tidemill.library.locate import check_runnable, locate
    from tidemill.loading.hub_name import with_options
    from tidemill.loading.kind import check_model
    from tidemill.server.admission.options import AdmissionOptions
    from tidemill.server.host.engine_loader import Opening
    from tidemill.server.run import ModelOptions, ServeOptions
    from tidemill.server.run import serve as run_server
    from tidemill.server.transport.listen import bind

    guard_stderr(log_line)
    set_up_logging("api", log_level, log_format)
    for flag, value, least in (
        ("stall-timeout", stall_timeout, 1.0),
        ("drain-timeout", drain_timeout, 0.0),
    ):
        if not least <= value <= 86400:
            raise config_error(
                flag, f"--{flag} is between {least:g} and 86400 seconds, not {value:g}"
            )
    admission = AdmissionOptions.of(
        max_queue_tokens=max_queue_tokens,
        max_queue_time=max_queue_time,
        ttft_objective_ms=ttft_objective_ms,
    )
    limits = _limits(limit)
    # Child processes, the engine included, must not inherit the key.
    os.environ.pop(KEY_VARIABLE, None)
    security = SecuritySettings(
        *(api_key, api_keys, share_prefix_cache, tls_cert, tls_key, tls_client_ca),
        *(cors_origin, allowed_host, trusted_proxy, insecure),
    ).open(host, _say)
    found = check_runnable(locate(with_options(model, file, revision), _say))
    path, name, defined = found.path, found.name, found.definition
    check_model(path)
    config = EngineConfig(
        model=str(path),
        served_name=served_name[0] if served_name else name,
        backend=backend,
        device=device,
        dtype=dtype,
        quantize=defined.quantize if quantize == "none" and defined.quantize else quantize,
        kv_dtype=kv_dtype,
        block_size=block_size,
        max_model_len=defined.max_model_len if max_model_len is None else max_model_len,
        max_num_seqs=max_num_seqs,
        max_step_tokens=max_step_tokens,
        kv_memory=options.parse_bytes("kv-memory", kv_memory),
        threads=threads,
        prefix_caching=prefix_caching,
        isa=isa,
        packed_cache=options.packed_cache(packed_cache),
        max_itl_ms=max_itl_ms,
    ).validate()
    # After the cheap checks and before loading: a port in use must fail at once.
    listener = bind(host, port)

    load_text = partial(_load_text, found, chat_template, tool_format, reasoning_format)
    checked: TextSide | None = None
    if (chat_template, tool_format, reasoning_format) != (None, "auto", "auto"):
        # These flags may be invalid: check them before the weights are loaded.
        with opened_files() as opened:
            checked = dataclasses.replace(load_text(), files=tuple(opened.values()))
    opening = Opening(config, lambda: checked or load_text())
    names = dict.fromkeys(served_name)
    code = run_server(
        ServeOptions(
            (ModelOptions(config.served_name, lambda: opening, tuple(names)[1:]),),
            log_level=log_level,
            limits=limits,
            security=security,
            log_format=log_format,
            admission=admission,
            stall_timeout=stall_timeout,
            drain_timeout=drain_timeout,
        ),
        listener,
        say=_say,
    )
    if code:
        sys.exit(code)


def _limits(settings: Sequence[str]) -> Limits:
    """The API's limits; the open-file limit bounds the number of connections."""
    from tidemill.server.access.limits import Limits
    from tidemill.server.transport.listen import raise_file_limit

    limits = Limits.parse(settings)
    possible = raise_file_limit(limits.max_connections)
    if possible < limits.max_connections:
        _say(
            f"at most {possible} connections instead of {limits.max_connections}: the system's "
            "limit on open files (`ulimit -n`) allows no more"
        )
    return dataclasses.replace(limits, max_connections=possible)


def _load_text(
    model: Located, chat_template: str | None, tool_format: str, reasoning_format: str
) -> TextSide:
    """Load the text side and print its notes at startup."""
    from tidemill.grammar.schema import prepared
    from tidemill.server.host.engine_loader import TextSide
    from tidemill.text.answering import ChatSide

    opened = options.open_text(model.path, chat_template, model.definition)
    for note in opened.tokenizer.notes:
        _say(note)
    if opened.defaults:
        chosen = ", ".join(f"{k} {v:g}" for k, v in opened.defaults.items())
        _say(f"sampling where a request says nothing (the model's own): {chosen}")
    if not opened.template.exists:
        _say("the model has no chat template: only /v1/completions answers (or --chat-template)")
    chat = ChatSide.of(
        opened.tokenizer,
        opened.template,
        prepared,
        tool_format=tool_format,
        reasoning_format=reasoning_format,
    )
    if opened.template.exists:
        _say(chat.described())
    return TextSide(opened.tokenizer, opened.template, chat, opened.defaults, opened.preset)


def _say(line: str) -> None:
    """Print a startup line at any log level; with JSON logs it is a log record."""
    if log_format() == "json":
        log.handle(log.makeRecord(log.name, logging.INFO, "", 0, line, (), None))
        return
    # A single write: two threads print while loading.
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
