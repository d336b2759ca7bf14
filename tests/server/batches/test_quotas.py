"""Lines of batches count on the limits of who asked for the batch."""

from __future__ import annotations

import json
from pathlib import Path

import openai
from helpers.live_server import fake_context, serving
from helpers.scripted_engine import ScriptedEngine
from prometheus_client import CollectorRegistry

from tidemill.contract.quotas import Defaults, Level, parse_limits
from tidemill.metrics.database import DatabaseMetrics
from tidemill.server.access.auth import Principal
from tidemill.server.access.keys import Owner, Role
from tidemill.server.batches.owners import described, principal_of
from tidemill.server.quotas.gate import Gate
from tidemill.server.quotas.quotas import Quotas
from tidemill.server.storage import Storage
from tidemill.store.location import location_of

from .test_openai import finished, line, upload


def test_a_batch_is_charged_and_a_line_that_never_fits_fails(tmp_path: Path) -> None:
    context = fake_context(ScriptedEngine(lambda request, choice: [97] * 50))
    place = location_of(None, tmp_path)
    assert place is not None
    context.storage = Storage(place, DatabaseMetrics(CollectorRegistry()))
    quotas = Quotas(Defaults({Level.SERVER: parse_limits({"tokens_per_day": 100, "rpd": 9})}))
    context.quotas = Gate(lambda: quotas)
    context.quotas.open()
    with serving(context) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        source = upload(client, [line(0), line(1, max_tokens=150), line(2)])
        batch = client.batches.create(
            input_file_id=source, endpoint="/v1/chat/completions", completion_window="24h"
        )
        batch = finished(client, batch)
        assert batch.output_file_id is not None
        assert batch.error_file_id is not None
        answers = client.files.content(batch.output_file_id).text.splitlines()
        (failed,) = client.files.content(batch.error_file_id).text.splitlines()
    usage = [json.loads(text)["response"]["body"]["usage"]["total_tokens"] for text in answers]
    assert len(usage) == 2
    error = json.loads(failed)["response"]["body"]["error"]
    assert error["code"] == "request_exceeds_limit"
    (account,) = (one for one in quotas.accounts if one.subject[0] is Level.SERVER)
    left = {m.measure.name: m.remaining(quotas.ledger.now()) for m in account.meters}
    assert left == {"tokens_per_day": 100 - sum(usage), "requests_per_day": 7}


def test_who_asked_for_a_batch_keeps_its_teams_and_limits() -> None:
    owner = Owner("o1", "t1", "u1", "Org", "Team", "Max")
    limits = parse_limits({"rpm": 3, "soft_money_per_day": "0.5"})
    asked = Principal(
        *("key:ci", "ci", Role.MANAGER, 2.0, "salt"), key_id="k1", owner=owner, limits=limits
    )
    found = principal_of(json.loads(json.dumps(described(asked))))
    assert found == asked
    old = {"client_id": "key:ci", "name": "ci", "role": "user"}
    assert principal_of(old) == Principal("key:ci", "ci", Role.USER)
