"""A server of its own process for `tidemill calibrate`, which measures what requests take there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemill.base.errors import config_error

if TYPE_CHECKING:
    import subprocess

    from tidemill.contract.config import EngineConfig
    from tidemill.simulate.costs import HostSeconds

_READY_SECONDS = 600.0
_LOOK_SECONDS = 0.05
_END_SECONDS = 30.0


def measured_host(config: EngineConfig, engine: HostSeconds, seconds: float) -> HostSeconds:
    """What requests take outside of steps, at a server of this model on a port of this machine.

    Args:
        engine: what its engine's loop takes.
        seconds: to measure for, beside the server's start.

    Raises:
        TidemillError: the server does not start, or does not say where time went.
    """
    import asyncio

    import msgspec

    from tidemill.base.clock import monotonic
    from tidemill.bench.client import HttpFailure
    from tidemill.simulate.http_costs import measure_http

    began = monotonic()
    with _served(config) as address:
        engine = msgspec.structs.replace(engine, start=monotonic() - began)
        longest = config.max_model_len or 1024
        measuring = measure_http(f"{address}/v1", seconds, longest=longest)
        try:
            return asyncio.run(measuring).costs(engine)
        except (HttpFailure, OSError) as error:
            raise config_error("model", f"the server that was measured failed: {error}") from error


@contextmanager
def _served(config: EngineConfig) -> Iterator[str]:
    """A server with these settings and none of the environment's; its address once it is ready."""
    import os
    import socket
    import subprocess
    import sys

    from tidemill.library.home import HOME_VARIABLE

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TIDEMILL_") or name == HOME_VARIABLE
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemill", "serve", config.model, *_flags(config, port)],
        env=environment, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _await_ready(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _flags(config: EngineConfig, port: int) -> list[str]:
    given = {
        "host": "127.0.0.1", "port": port, "database": "none", "page": "off", "speculate": "off",
        "log-level": "warning", "dtype": config.dtype, "quantize": config.quantize,
        "kv-dtype": config.kv_dtype, "block-size": config.block_size,
        "max-model-len": config.max_model_len, "max-num-seqs": config.max_num_seqs,
        "max-step-tokens": config.max_step_tokens, "kv-memory": config.kv_memory,
        "threads": config.threads, "isa": config.isa,
    }  # fmt: skip
    flags = [(f"--{name}", str(value)) for name, value in given.items() if value is not None]
    return [part for flag in flags for part in flag]


def _await_ready(process: subprocess.Popen[bytes], port: int) -> None:
    import asyncio
    import time

    from tidemill.base.clock import monotonic
    from tidemill.bench.client import HttpFailure, Target, get_json

    target, began = Target.parse(f"http://127.0.0.1:{port}", None), monotonic()
    while True:
        try:
            asyncio.run(get_json(target, "/readyz"))
        except (HttpFailure, OSError):
            pass
        except ValueError:
            return  # it answers without a document
        else:
            return
        if process.poll() is not None:
            raise config_error(
                "model", f"the server to measure ended with status {process.returncode}"
            )
        if monotonic() - began > _READY_SECONDS:
            raise config_error(
                "model", f"the server to measure was not ready after {_READY_SECONDS:g} s"
            )
        time.sleep(_LOOK_SECONDS)
