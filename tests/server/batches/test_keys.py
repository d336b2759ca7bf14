"""Batches and files belong to the key that made them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import httpx
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine
from prometheus_client import CollectorRegistry

from tidemill.metrics.database import DatabaseMetrics
from tidemill.server.access.keys import StaticKeys
from tidemill.server.access.security import Security
from tidemill.server.storage import Storage
from tidemill.store.location import location_of

CHAT = "/v1/chat/completions"
KEYS = {"a": "key-of-a-0123456789", "b": "key-of-b-0123456789"}


def write_keys(path: Path, *names: str) -> None:
    entries = [f'[[keys]]\nname = "{name}"\nkey = "{KEYS[name]}"\n' for name in names]
    path.write_text("\n".join(entries))
    path.chmod(0o600)


def line(i: int) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": f"Say {i}"}], "max_tokens": 5}
    return {"custom_id": f"c{i}", "method": "POST", "url": CHAT, "body": body}


def begin(http: httpx.Client, count: int) -> str:
    text = "\n".join(json.dumps(line(i)) for i in range(count)).encode()
    made = http.post(
        "/v1/files", files={"file": ("in.jsonl", io.BytesIO(text))}, data={"purpose": "batch"}
    )
    asked = {"input_file_id": made.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
    identity: str = http.post("/v1/batches", json=asked).json()["id"]
    return identity


def test_a_batch_is_its_keys_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    write_keys(path, "a", "b")
    keys = StaticKeys(path=path)
    context = fake_context(ScriptedEngine())
    place = location_of(None, tmp_path)
    assert place is not None
    context.storage = Storage(place, DatabaseMetrics(CollectorRegistry()))
    with serving(context, security=Security(keys=keys)) as url:
        mine, others = (
            httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEYS[name]}"})
            for name in "ab"
        )
        identity = begin(mine, 6)
        assert others.get(f"/v1/batches/{identity}").status_code == 404
        assert others.get("/v1/batches").json()["data"] == []
        assert others.get("/v1/files").json()["data"] == []
        assert others.post(f"/v1/batches/{identity}/cancel").status_code == 404
