"""`tidemill batch run`: from file to file, and again after it was interrupted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidemill", "batch", "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def lines(count: int) -> list[dict[str, Any]]:
    return [
        {
            "custom_id": f"c{i}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"The number {i}", "max_tokens": 4, "temperature": 0},
        }
        for i in range(count)
    ]


def write(path: Path, found: list[dict[str, Any]]) -> None:
    path.write_text("\n".join(json.dumps(line) for line in found))


def test_a_file_is_answered_in_order_and_continued(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked = lines(12)
    asked[5]["body"]["temperature"] = 9000
    write(source, asked)
    first = run(source, target)
    assert first.returncode == 1 and "12 lines answered" in first.stdout, first.stderr
    assert "1 with errors" in first.stdout
    rows = [json.loads(text) for text in target.read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == [f"c{i}" for i in range(12)]
    assert rows[5]["response"]["status_code"] == 400
    assert all(row["response"]["body"]["choices"] for i, row in enumerate(rows) if i != 5)
    # As a kill leaves it: some lines out of order, the last one cut.
    texts = target.read_text().splitlines(keepends=True)
    target.write_text(texts[7] + texts[2] + texts[3][:40])
    again = run(source, target)
    assert again.returncode == 1 and "12 lines answered" in again.stdout, again.stderr
    answers = [json.loads(text) for text in target.read_text().splitlines()]
    assert [a["custom_id"] for a in answers] == [f"c{i}" for i in range(12)]
    assert answers[7] == rows[7] and answers[2] == rows[2]
    assert answers[3]["response"]["body"]["choices"] == rows[3]["response"]["body"]["choices"]


def test_what_is_wrong_is_said_before_a_model_is_loaded(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write(source, [*lines(2), *lines(1)])
    said = run(source, target)
    assert said.returncode == 2 and "line 3" in said.stderr and "twice" in said.stderr
    assert not target.exists()
    source.write_text('{"url": "/v1/rerank"}')
    said = run(source, target)
    assert said.returncode == 2 and "/v1/rerank" in said.stderr
    assert run(tmp_path / "none.jsonl", target).returncode == 1
    said = run(source, source)
    assert said.returncode == 2 and "the same file" in said.stderr
    write(source, lines(1))
    target.write_text('{"custom_id": "another"}\n')
    said = run(source, target)
    assert said.returncode == 2 and "does not have" in said.stderr
    assert target.read_text() == '{"custom_id": "another"}\n'
