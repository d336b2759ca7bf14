"""`tidemill rank`: compute a part of a model for an engine on another machine."""

from __future__ import annotations

from tidemill.cli import options
from tidemill.cli.declared import argument, option


def rank(
    model: str = argument(
        ..., help="The same model as the engine's: a folder, a .gguf file, or a name."
    ),
    listen: str = option(..., help="HOST:PORT where the engine's machine reaches this one."),
    threads: int | None = options.THREADS,
    packed_cache: str = options.PACKED_CACHE,
    log_level: str = options.SERVER["log_level"],
    log_format: str = options.SERVER["log_format"],
) -> None:
    """Compute some layers of a model for `tidemill serve --pipeline-peers` on another machine.

    The engine says which layers. Both machines have the same key in TIDEMILL_KV_KEY. When the
    engine ends, it waits for the next one.
    """
    import signal
    import threading

    import msgspec

    from tidemill.base.errors import config_error
    from tidemill.base.log import get_logger, log_line, set_up_logging
    from tidemill.base.stderr import guard_stderr
    from tidemill.cli.defined import files_of
    from tidemill.contract.config import EngineConfig
    from tidemill.executor.ranks.host import RankHost
    from tidemill.loading.locate import resolve
    from tidemill.transfer.link import KEY_VARIABLE, key_from_environment

    guard_stderr(log_line)
    set_up_logging("rank", log_level, log_format)
    path = str(resolve(files_of(model) or model))

    def localize(config: EngineConfig) -> EngineConfig:
        return msgspec.structs.replace(
            config, model=path, threads=threads, packed_cache=packed_cache
        )

    try:
        key = key_from_environment()
        if key is None:
            raise config_error("listen", f"set {KEY_VARIABLE} to the key of the engine's machine")
        host = RankHost(listen, key, localize)
    except (OSError, ValueError) as error:
        raise config_error("listen", f"--listen {listen}: {error}") from None
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    get_logger(__name__).info("waiting for an engine on %s", host.address)
    ended.wait()
    host.close()
