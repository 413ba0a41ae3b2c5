"""A store that fails once, under requests of the vendors' APIs: the request is refused or answered, and the next one works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import gateway_config
from tests.support.faulty_store import DISK_FULL, run_faulty_gateway

MESSAGES = [{"role": "user", "content": "hello"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "echo", "messages": MESSAGES},
    "/v1/responses": {"model": "echo", "input": "hello"},
    "/v1/messages": {"model": "echo", "max_tokens": 1, "messages": MESSAGES},
}


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("path", REQUESTS)
async def test_a_write_that_fails_once(tmp_path: Path, path: str, stream: bool) -> None:
    body = {**REQUESTS[path], "stream": stream}
    async with run_faulty_gateway(gateway_config(tmp_path)) as (portico, faults):
        for operation in ("sessions.create", "runs.start"):
            faults.fail(operation, times=1)
            answer = await portico.client.post(path, json=body)
            assert (answer.status_code, DISK_FULL in answer.json()["error"]["message"]) == (503, True), answer.text
        for operation in ("events.append", "runs.stop", "responses.add", "responses.set_over"):
            before = faults.operations[operation]
            faults.fail(operation, times=1)
            answer = await portico.client.post(path, json=body)
            assert (answer.status_code, "hello" in answer.text, "error" in answer.text) == (
                200,
                True,
                '"error":null' in answer.text,
            )
            assert operation.startswith("responses.") or faults.operations[operation] > before
            faults.clear()
