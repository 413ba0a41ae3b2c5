"""`/healthz`, `/readyz` and `/metrics` of a running gateway."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.observability import health
from gateway.observability.metrics import FIRST_EVENT, Metrics, MetricsSnapshot
from tests.support.cluster import leave_out, placement
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.requests import (
    agent_processes,
    create_session,
    execute,
    send_turn,
    session_body,
    user_message,
    wait_until_idle,
)
from tests.support.stores import locked, sql
from tests.support.waiting import wait_until

WriteScenario = Callable[..., str]
USAGE = {"usage": {"input_tokens": 7, "output_tokens": 5, "cache_read": 3, "cache_write": 2}}


async def read_metrics(client: httpx.AsyncClient) -> dict[str, float]:
    """Every sample of `/metrics`, by its name without `portico_` and its labels."""
    if placement():
        leave_out("looks at the metrics of one gateway; each node has its own")
    answer = await client.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[sample.name.removeprefix("portico_") + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


async def test_metrics_count_turns_events_and_tokens(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"text": "ok"}, USAGE])
    session = (await create_session(portico.client, options={"scenario": name}))["sessionId"]
    await send_turn(portico.client, session, "again")
    await execute(portico.client, driver="echo")
    found = await read_metrics(portico.client)
    assert found['turns_total{agent="script",stop_reason="end_turn"}'] == 2
    assert found['turns_total{agent="echo",stop_reason="end_turn"}'] == 1
    assert found['events_total{agent="script",kind="agent_token"}'] == 2
    assert found['events_total{agent="script",kind="session_end"}'] == 2
    tokens = {
        kind: found[f'tokens_total{{agent="script",kind="{kind}"}}'] for kind in ("input", "output", "cache_read", "cache_write")
    }
    assert tokens == {"input": 14, "output": 10, "cache_read": 6, "cache_write": 4}
    assert found['first_event_seconds_count{agent="script"}'] == 2
    assert found['turn_seconds_count{agent="script"}'] == 2
    assert 0 < found['first_event_seconds_sum{agent="script"}'] <= found['turn_seconds_sum{agent="script"}']
    assert found['agent_starts_total{agent="script",how="new"}'] == 1
    assert found['agent_starts_total{agent="echo",how="task"}'] == 1
    assert found['http_requests_total{method="PUT",route="/session",status="201"}'] == 1
    assert found['http_requests_total{method="POST",route="/session/{session_id}",status="200"}'] == 1
    assert found["live_agents"] == 1
    assert found["running_turns"] == 0

    async def streams_closed() -> bool:
        now = await read_metrics(portico.client)
        return (now["open_streams"], now["store_unwritten_bytes"]) == (0, 0)

    await wait_until(streams_closed)
    # Unknown methods and paths are not metric labels.
    for n in range(3):
        await portico.client.request("PROPFIND", f"/nothing/{n}")
    found = await read_metrics(portico.client)
    unmatched = {name: value for name, value in found.items() if 'route="unmatched"' in name and "created" not in name}
    assert unmatched == {'http_requests_total{method="other",route="unmatched",status="404"}': 3}


async def test_metrics_count_running_turns_and_open_streams(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    name = write_scenario([{"text": "x"}, {"hang": True}])
    options = {"scenario": name}
    async with portico.client.stream(
        "PUT", "/session", json=session_body("script", "hang", options=options, stream="delta")
    ) as answer:
        lines = answer.aiter_lines()
        while await anext(lines) != "event: text_delta":
            pass
        found = await read_metrics(portico.client)
        assert (found["running_turns"], found["open_streams"], found["live_agents"]) == (1, 1, 1)
    await wait_until(lambda: portico.gateway.metrics.registry.get_sample_value("portico_open_streams") == 0)


async def test_metrics_count_a_session_with_pending_calls(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    tool = {"name": "ask", "description": "Asks.", "inputSchema": {"type": "object"}}
    name = write_scenario([{"app_tool": {"name": "ask"}}])
    answer = await create_session(portico.client, options={"scenario": name}, tools=[tool])
    assert answer["stopReason"] == "tool_use"
    found = await read_metrics(portico.client)
    assert found["waiting_sessions"] == 1
    assert found["running_turns"] == 0
    assert found['turns_total{agent="script",stop_reason="tool_use"}'] == 1
    # The user message cancels the suspended run. The cancellation does not count as a turn.
    assert (await send_turn(portico.client, answer["sessionId"], "x"))["stopReason"] == "tool_use"
    found = await read_metrics(portico.client)
    assert found['events_total{agent="script",kind="session_end"}'] == 1
    assert found['turn_seconds_count{agent="script"}'] == found['turns_total{agent="script",stop_reason="tool_use"}'] == 2
    assert 'turns_total{agent="script",stop_reason="cancelled"}' not in found


async def test_metrics_distinguish_starts_restarts_and_crashes(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    name = write_scenario(
        {"when": "crash", "steps": [{"exit": 3}]}, {"when": "fail", "steps": [{"stop": {"reason": "error"}}]}, [{"text": "ok"}]
    )
    options = {"scenario": name}
    session = (await create_session(portico.client, options=options))["sessionId"]
    await send_turn(portico.client, session, "fail")
    assert (await read_metrics(portico.client))['agent_crashes_total{agent="script"}'] == 0
    await send_turn(portico.client, session, "crash")
    assert (await send_turn(portico.client, session, "x"))["stopReason"] == "end_turn"
    await create_session(
        portico.client, "script", user_message("seed"), {"role": "assistant", "content": "s"}, "go", options=options
    )
    refused = await portico.client.put("/session", json=session_body(options={"scenario": "none.json"}))
    assert refused.status_code == 503
    found = await read_metrics(portico.client)
    assert found['agent_crashes_total{agent="script"}'] == 1
    assert found['agent_restarts_total{agent="script"}'] == 1
    starts = {
        how: found.get(f'agent_starts_total{{agent="script",how="{how}"}}') for how in ("new", "resumed", "seeded", "failed")
    }
    assert starts == {"new": 1, "resumed": None, "seeded": 2, "failed": 1}


async def test_metrics_count_a_killed_agent_as_crashed(portico: RunningGateway, write_scenario: WriteScenario) -> None:
    options = {"scenario": write_scenario([{"text": "x"}, {"hang": True}])}
    before = {agent.pid for agent in agent_processes(os.getpid())}
    task = asyncio.create_task(create_session(portico.client, options=options))
    (agent,) = await wait_until(lambda: [a for a in agent_processes(os.getpid()) if a.pid not in before])
    await wait_until(
        lambda: portico.gateway.metrics.registry.get_sample_value(
            "portico_events_total", {"agent": "script", "kind": "agent_token"}
        )
    )
    os.kill(agent.pid, signal.SIGKILL)
    session = (await task)["sessionId"]
    await wait_until_idle(portico.client, session)
    assert (await read_metrics(portico.client))['agent_crashes_total{agent="script"}'] == 1


async def test_metrics_require_the_key_unless_open_metrics_is_set(tmp_path: Path) -> None:
    async with (
        run_gateway(gateway_config(tmp_path, server={"open_metrics": True})) as running,
        httpx.AsyncClient(base_url=running.url, timeout=60) as client,
    ):
        assert (await client.get("/metrics")).status_code == 200
    async with run_gateway(gateway_config(tmp_path)) as running, httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        assert (await client.get("/metrics")).status_code == 401


def test_each_gateway_has_its_own_metrics() -> None:
    one, other = Metrics(), Metrics()
    one.for_agent("echo").turn("end_turn")
    labels = {"agent": "echo", "stop_reason": "end_turn"}
    assert one.registry.get_sample_value("portico_turns_total", labels) == 1
    assert other.registry.get_sample_value("portico_turns_total", labels) is None


def test_the_samples_are_those_of_prometheus_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """PROMETHEUS_DISABLE_CREATED_SERIES, which it reads when it is imported, applies here too."""
    for with_created in (True, False):
        monkeypatch.setattr("time.time", lambda: 1.7e9)
        monkeypatch.setattr("prometheus_client.metrics._use_created", with_created)
        metrics, registry = Metrics(), CollectorRegistry()
        agent = ["agent"]
        turns = Counter("portico_turns", metrics.turns.text, [*agent, "stop_reason"], registry=registry)
        first = Histogram("portico_first_event_seconds", metrics.first_event.text, agent, registry=registry, buckets=FIRST_EVENT)
        streams = Gauge("portico_open_streams", "Server-sent event streams that are open.", registry=registry)
        for name in ("echo", 'a "quoted\\ \n one'):
            turns.labels(name, "end_turn").inc(2.5)
            metrics.turns.labels(name, "end_turn").inc(2.5)
            for seconds in (0.0, 0.005, 0.0051, 0.1, 60, 61, 1e9, float("inf")):
                first.labels(name).observe(seconds)
                metrics.first_event.labels(name).observe(seconds)
        streams.inc()
        metrics.open_streams.inc()
        expected = generate_latest(registry).decode().splitlines()
        found = metrics.text(MetricsSnapshot(0, 0, 0, 0)).decode().splitlines()
        exported = ("portico_turns", "portico_first_event", "portico_open_streams")
        assert [line for line in found if any(name in line for name in exported)] == expected, with_created


async def test_metrics_do_not_wait_for_blocked_file_accesses(portico: RunningGateway) -> None:
    unblocked = threading.Event()
    threads = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(threads)
    blocked = threads.submit(unblocked.wait)
    try:
        for _ in range(2):
            assert (await portico.client.get("/metrics", timeout=10)).status_code == 200
    finally:
        unblocked.set()
    assert blocked.result()


async def test_every_metric_is_documented(portico: RunningGateway) -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    documented = set(re.findall(r"^\| `(portico_\w+)", page, re.MULTILINE))
    registered = {family.name for family in portico.gateway.metrics.registry.collect() if family.name.startswith("portico_")}
    # A gateway that is no node forwards nothing.
    assert {name.removesuffix("_total") for name in documented} == registered | {"portico_forwarded_requests"}


@pytest.mark.sqlite_only
async def test_readyz_reports_ready_while_the_store_can_be_written(portico: RunningGateway, clock: ManualClock) -> None:
    answer = await portico.client.get("/readyz", headers={"Authorization": ""})
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
    data_dir = portico.gateway.settings.data_dir
    sql(data_dir, "ALTER TABLE store_version RENAME TO elsewhere")
    assert (await portico.client.get("/readyz")).status_code == 200, "the last result is used for a second"
    await clock.advance(health.CACHE_SECONDS)
    answer = await portico.client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["status"] == "not ready"
    assert "the store cannot be written" in answer.json()["reasons"][0]
    assert "elsewhere" not in answer.text
    sql(data_dir, "ALTER TABLE elsewhere RENAME TO store_version")
    await clock.advance(health.CACHE_SECONDS)
    answer = await portico.client.get("/readyz")
    assert answer.status_code == 200, answer.text


@pytest.mark.sqlite_only
async def test_readyz_reports_not_ready_while_the_store_is_locked(portico: RunningGateway, clock: ManualClock) -> None:
    with locked(portico.gateway.settings.data_dir):
        asking = asyncio.create_task(portico.client.get("/readyz"))
        await clock.expire(health.WRITE_TIMEOUT)
        answer = await asking
    assert answer.status_code == 503
    assert "did not take a write within" in answer.json()["reasons"][0]
    assert (await portico.client.get("/healthz")).status_code == 200


async def test_readyz_reports_not_ready_while_the_disk_is_full(
    portico: RunningGateway, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's own write succeeds: it uses space that the store has already."""
    with monkeypatch.context() as full_disk:
        full_disk.setattr(health, "TemporaryFile", lambda dir: open("/dev/full", "wb"))  # noqa: SIM115 - the check closes it
        answer = await portico.client.get("/readyz")
    assert (answer.status_code, answer.json()["reasons"]) == (503, ["the disk is full: 1024 KiB cannot be written"])
    await clock.advance(health.CACHE_SECONDS)
    assert (await portico.client.get("/readyz")).status_code == 200


async def test_readyz_reports_not_ready_while_the_data_directory_is_not_writable(
    portico: RunningGateway, clock: ManualClock
) -> None:
    if placement():
        leave_out("moves the data directory of one gateway")
    data_dir = portico.gateway.settings.data_dir

    def files() -> list[Path]:
        # Which agents there are is stored in the background.
        return sorted(file for file in data_dir.iterdir() if file.stem != "discovery")

    # The probes of agents make it in the background.
    await wait_until((data_dir / "workspaces").exists)
    before = files()
    assert (await portico.client.get("/readyz")).status_code == 200
    assert files() == before
    data_dir.rename(data_dir.with_name("moved"))
    await clock.advance(health.CACHE_SECONDS)
    answer = await portico.client.get("/readyz")
    data_dir.with_name("moved").rename(data_dir)
    assert answer.status_code == 503
    assert answer.json()["reasons"][0].startswith("the folder of the data cannot be written (No such file or directory)")
    await clock.advance(health.CACHE_SECONDS)
    assert (await portico.client.get("/readyz")).status_code == 200


async def test_readyz_reports_not_ready_during_shutdown(portico: RunningGateway) -> None:
    await portico.gateway.stop_runs()
    answer = await portico.client.get("/readyz")
    assert (answer.status_code, answer.json()["reasons"]) == (503, ["the gateway is shutting down"])
