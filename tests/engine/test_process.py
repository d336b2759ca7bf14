"""The engine's own process, with a real model file."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from helpers.drive import request
from helpers.tiny_checkpoints import make_checkpoint

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.contract.config import EngineConfig
from tidemill.contract.request import ChoiceOutput
from tidemill.engine.client import InprocClient, SocketClient
from tidemill.engine.spawn import EngineHome, EngineProcess, ending, spawn_engine

KV_MEMORY = 4 * 2**20


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = make_checkpoint("qwen3-q", tmp_path_factory.mktemp("model") / "tiny")
    return EngineConfig(model=str(folder), served_name="tiny", kv_memory=KV_MEMORY, threads=1)


async def collect(stream: AsyncIterator[ChoiceOutput]) -> list[ChoiceOutput]:
    return [output async for output in stream]


def tokens_of(outputs: list[ChoiceOutput]) -> list[int]:
    return [t for o in outputs for t in o.token_ids]


def gone(pid: int) -> bool:
    """No such process, or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rsplit(")", 1)[1].split()[0] == "Z"


async def test_spawn_serve_and_leave(config: EngineConfig) -> None:
    lines: list[str] = []
    engine, client = await spawn_engine(config, lines.append)
    assert client.info.model == "tiny" and client.info.kv_bytes <= KV_MEMORY
    assert any("KV cache" in line for line in lines), lines
    folder = Path(engine.socket_path).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    batch = [request(f"r{i}", [1, 2, 3 + i], 12, logprobs=1) for i in range(6)]
    got = await asyncio.gather(*(collect(client.submit(one)) for one in batch))
    twin = await InprocClient.open(config)
    want = await asyncio.gather(*(collect(twin.submit(one)) for one in batch))
    await twin.close()
    assert [tokens_of(o) for o in got] == [tokens_of(o) for o in want]
    stats = await client.stats()
    assert stats.blocks_used == 0 and stats.generated_tokens == 72
    await client.close()
    async with asyncio.timeout(10):
        assert await engine.wait() == 0
    assert not folder.exists()


async def test_a_killed_engine_ends_streams_with_a_retryable_error(config: EngineConfig) -> None:
    engine, client = await spawn_engine(config)
    stream = client.submit(request("a", [1, 2, 3], 4000))
    await anext(stream)
    os.kill(engine.pid, signal.SIGKILL)
    async with asyncio.timeout(10):
        outputs = await collect(stream)
        assert await engine.wait() == -signal.SIGKILL
    error = outputs[-1].error
    assert error is not None and error.kind == ErrorKind.UNAVAILABLE and error.retryable
    assert client.problem is not None
    with pytest.raises(TidemillError):
        client.submit(request("b", [1], 1))


def test_how_a_process_ended_is_said_in_words() -> None:
    assert ending(3).startswith("ended with exit code 3")
    assert ending(-signal.SIGBUS).startswith("was ended by SIGBUS (a mapped file was truncated")
    assert ending(-signal.SIGHUP) == "was ended by SIGHUP"
    assert ending(-200) == "was ended by signal 200"


async def test_sigterm_ends_it_cleanly(config: EngineConfig) -> None:
    engine, client = await spawn_engine(config)
    stream = client.submit(request("a", [1, 2, 3], 4000))
    await anext(stream)
    async with asyncio.timeout(10):
        assert await engine.stop() == 0
        outputs = await collect(stream)
    assert outputs[-1].finish_reason is not None
    await client.close()


def _truncated(config: EngineConfig, folder: Path) -> str:
    source = Path(config.model)
    folder.mkdir()
    for file in source.iterdir():
        data = file.read_bytes()
        keep = len(data) // 2 if file.suffix == ".safetensors" else len(data)
        (folder / file.name).write_bytes(data[:keep])
    return str(folder)


def _huge(config: EngineConfig, folder: Path) -> str:
    """A sparse checkpoint of a terabyte of weights, larger than any memory here; all is valid."""
    source = Path(config.model)
    folder.mkdir()
    model = json.loads((source / "config.json").read_text())
    data = (source / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    layers, width = 200, 2**24
    shapes = {}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        shape = [width if n == model["intermediate_size"] else n for n in tensor["shape"]]
        if ".layers.0." in name:
            for i in range(layers):
                shapes[name.replace(".layers.0.", f".layers.{i}.")] = shape
        elif ".layers." not in name:
            shapes[name] = shape
    model |= {"num_hidden_layers": layers, "intermediate_size": width}
    model.pop("layer_types", None)
    end, made = 0, {}
    for name, shape in shapes.items():
        count = 4 * math.prod(shape)
        made[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + count]}
        end += count
    text = json.dumps(made).encode()
    text += b" " * (-len(text) % 8)
    (folder / "config.json").write_text(json.dumps(model))
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return str(folder)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ("absent", ErrorKind.NOT_FOUND),
        ("truncated", ErrorKind.MODEL_FILE),
        ("huge", ErrorKind.RESOURCE),
        ("no-cache", ErrorKind.RESOURCE),
        ("context", ErrorKind.CONFIG),
        ("backend", ErrorKind.CONFIG),
    ],
)
async def test_start_errors_arrive_as_they_were(
    config: EngineConfig, tmp_path: Path, change: str, kind: ErrorKind
) -> None:
    makers: dict[str, Callable[[], dict[str, object]]] = {
        "absent": lambda: {"model": str(tmp_path / "nothing" / "here")},
        "truncated": lambda: {"model": _truncated(config, tmp_path / "t")},
        "huge": lambda: {"model": _huge(config, tmp_path / "h")},
        "no-cache": lambda: {"kv_memory": 10},
        "context": lambda: {"max_model_len": 10**6},
        "backend": lambda: {"backend": "cuda"},
    }
    changes = makers[change]()
    with pytest.raises(TidemillError) as caught:
        await spawn_engine(msgspec.structs.replace(config, **changes))
    assert caught.value.kind is kind, caught.value
    assert caught.value.message


OWNER = """
import asyncio, sys
import msgspec
from tidemill.contract.config import EngineConfig
from tidemill.engine.spawn import spawn_engine

async def main():
    config = msgspec.json.decode(sys.argv[1], type=EngineConfig)
    engine, client = await spawn_engine(config)
    print(engine.pid, engine.socket_path, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_the_engine_goes_when_its_owner_is_killed(config: EngineConfig) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, msgspec.json.encode(config).decode()],
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None
    line = (await asyncio.to_thread(owner.stdout.readline)).decode()
    pid, path = int(line.split()[0]), Path(line.split()[1])
    assert not gone(pid)
    owner.kill()
    owner.wait()
    async with asyncio.timeout(10):
        while not gone(pid):
            await asyncio.sleep(0.05)
    assert not path.parent.exists()
    owner.stdout.close()


async def test_guests_come_and_go(config: EngineConfig) -> None:
    engine: EngineProcess
    engine, client = await spawn_engine(config)
    guest = await SocketClient.connect(engine.socket_path, config.digest())
    first, second = await asyncio.gather(
        collect(client.submit(request("x", [1, 2], 5))),
        collect(guest.submit(request("x", [1, 2], 5))),
    )
    assert tokens_of(first) == tokens_of(second) != []
    await guest.close()
    assert client.problem is None
    await engine.stop()
    await client.close()


def test_a_temporary_folder_too_deep_for_a_socket_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    home = EngineHome(1)
    folder = Path(home.socket_path).parent
    try:
        with closing(socket.socket(socket.AF_UNIX)) as listening:
            listening.bind(home.socket_path)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and list(deep.iterdir()) == []
    finally:
        home.close()
    assert not folder.exists()
