"""The real claude in bwrap and in a container of podman: approvals, the application's tools, cancelling, resumption.

After a killed daemon nothing of it is left running."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from drivers.contract.agent_specs import AgentSpec
from tests.real.aap_client import create_session, frames_of, read_until_event
from tests.real.clis import CLIS
from tests.real.conftest import Home
from tests.real.processes import processes_of, running_process
from tests.real.test_claude_processes import SLEEPER
from tests.real.tool_bench import WEATHER, Bench, bash, grant, result, weather
from tests.support.container_runtimes import containers_of, docker_daemon, put_into
from tests.support.daemon import run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

RUNTIMES = pytest.mark.parametrize("runtime", ["bwrap", "podman"])


@pytest.fixture(scope="module")
def docker() -> Iterator[Mapping[str, str]]:
    """The variables with which docker's client finds a daemon."""
    with docker_daemon() as own:
        yield own


@pytest.mark.parametrize("runtime", ["bwrap", "podman", "docker"])
async def test_approved_command_and_application_side_tool(
    unstarted_bench: Bench, runtime: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    bench, config = unstarted_bench, unstarted_bench.config()
    docker = request.getfixturevalue("docker") if runtime == "docker" else None
    put_into(runtime, config["agents"]["claude"], bench.home, monkeypatch, CLIS.resolve(), docker=docker)
    data = config["server"]["data_dir"]
    async with run_gateway(config) as running:
        bench.client = running.client
        script = f"pwd; echo made > made; cat {data}/instance-id; echo x > /usr/made; cat /proc/[0-9]*/comm | tr '\\n' ' '"
        asked = await bench.start(bench.model_calls(bash(script)), {"Bash": False}, [WEATHER])
        assert (asked.stop, asked.called) == ("tool_use", ["Bash"])
        (call,), session = asked.calls, asked.session
        answered = await bench.answer(session, grant(call))
        output = str(answered.results[call])
        assert (answered.text, answered.stop) == ("Done.", "end_turn")
        assert output.startswith(str(bench.work)) and "Read-only file system" in output and "claude" in output
        assert "instance-id: No such file" in output and "pytest" not in output.splitlines()[-1]
        assert (bench.work / "made").read_text() == "made\n"

        asked = await bench.send_turn(session, bench.model_calls(weather(city="Oslo")))
        assert (asked.stop, asked.called) == ("tool_use", ["get_weather"])
        answered = await bench.answer(session, result(asked.calls[0], "Rain"))
        assert (answered.text, answered.stop) == ("Done.", "end_turn")
        assert bench.results_sent()[asked.calls[0]]["content"] == [{"type": "text", "text": "Rain"}]


@RUNTIMES
async def test_cancelled_turn_and_resumption(home: Home, runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = put_into(runtime, home.agent, home.path, monkeypatch, CLIS.resolve())
    daemon = await home.daemon(variables)
    async with daemon.client() as client:
        aap = await create_session(client, "[[plain]] one")
        async with aap.open_stream("[[slowtext]]") as frames:
            await read_until_event(frames, "text_delta")
            assert (await client.post(f"/session/{aap.id}/cancel")).json()["cancelled"]
            name, data = [frame async for frame in frames][-1]
            assert (name, data["stopReason"]) == ("turn_stop", "end_turn")
        other = await create_session(client, "[[plain]] one")
    files = sorted(home.session_files())
    assert await daemon.stop() == 0
    assert processes_of(home.path) == []
    await daemon.start()
    async with daemon.client() as client:
        assert await other.with_client(client).send_turn("[[recall]]") == "I see 2 user texts. Before this one: [[plain]] one"
    assert sorted(home.session_files()) == files, "it was resumed, and not seeded"


@RUNTIMES
async def test_killed_daemon_leaves_nothing_running(home: Home, runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = put_into(runtime, home.agent, home.path, monkeypatch, CLIS.resolve())
    home.agent["args"] = ["--allowedTools=Bash"]
    daemon = await home.daemon(variables)
    data = Path(home.config()["server"]["data_dir"])
    async with daemon.client() as client:
        body = {"driver": "claude", "task": f"[[run:{SLEEPER}]]"}
        async with frames_of(client, "POST", "/v1/execute", body):
            await running_process(home.path, "python")
            await daemon.kill()
    await daemon.start()
    await wait_until(lambda: processes_of(home.path, command="97") == [], "the command has ended")
    async with daemon.client() as client:
        await create_session(client, "[[plain]] one")
    assert await daemon.stop() == 0
    assert processes_of(home.path) == []
    if runtime == "podman":
        assert containers_of(data, variables) == []


@RUNTIMES
async def test_version_is_found_inside(home: Home, runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_into(runtime, home.agent, home.path, monkeypatch, CLIS.resolve())
    async with home.gateway() as running:
        agent = running.gateway.agents.get("claude")
        spec: AgentSpec = agent.spec({})
        shared: Any = running.gateway.discovery.spawner
        spawner = copy.copy(agent.sandboxed(shared, spec))
        # On a busy machine podman takes longer than the limit of a probe.
        spawner.clock = ManualClock()
        probe = await agent.driver.probe(spec, spawner)
    assert (probe.problem, probe.logged_in) == (None, True)
    assert probe.version
