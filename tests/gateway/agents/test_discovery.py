"""Agent discovery as reported by `/meta` and `/v1/drivers`: each program is probed once."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

from drivers.contract.agent_specs import AgentSpec
from drivers.contract.driver_info import Option, Probe
from drivers.echo.driver import EchoDriver
from drivers.runtime.process import Spawner
from gateway.agents.configured_agents import Agents
from gateway.agents.discovery import MAX_AGE_PROBLEM, MAX_PROBES, REFRESH_DELAY, Discovery
from gateway.agents.probe_cache import read_cache, write_cache
from gateway.config import parse
from gateway.security.redaction import Redactor
from tests.support import sse
from tests.support.daemon import gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.programs import write_script
from tests.support.requests import user_message, wait_for_probes
from tests.support.waiting import wait_until

Program = Callable[..., Path]


@pytest.fixture
def claude(tmp_path: Path) -> Program:
    """Write a program that answers as the claude CLI does; it appends each call to the file `calls`."""

    def write(
        version: str = "2.1.329", logged_in: bool = True, models: tuple[str, ...] = ("opus", "sonnet"), session: str = ""
    ) -> Path:
        opened = {"models": [{"value": model} for model in models]}
        answer = {"type": "control_response", "response": {"subtype": "success", "request_id": "init", "response": opened}}
        path = tmp_path / "claude"
        path.write_text(
            f'#!/bin/sh\necho "$1" >> {tmp_path}/calls\ncase "$1" in\n'
            f"--version) echo '{version} (Claude Code)';;\n"
            f"auth) echo '{json.dumps({'loggedIn': logged_in})}'; exit {0 if logged_in else 1};;\n"
            f"*) read request; {session} echo '{json.dumps(answer)}'; cat > /dev/null;;\nesac\n"
        )
        path.chmod(0o755)
        return path

    return write


def claude_config(tmp_path: Path, program: Path) -> dict[str, Any]:
    return gateway_config(tmp_path, agents={"claude": {"driver": "claude", "program": str(program)}})


def program_calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().split()


async def test_meta_reports_the_version_and_models_of_the_program(tmp_path: Path, claude: Program) -> None:
    async with run_gateway(claude_config(tmp_path, claude())) as running:
        agents = {agent["name"]: agent for agent in (await running.client.get("/meta")).json()["agents"]}
    assert agents["claude"]["version"] == "2.1.329"
    model = next(option for option in agents["claude"]["options"] if option["name"] == "model")
    assert (model["type"], model["options"], model["default"]) == ("select", ["default", "opus", "sonnet"], "default")


async def test_logged_out_agent_is_not_listed_and_drivers_reports_the_problem(tmp_path: Path, claude: Program) -> None:
    async with run_gateway(claude_config(tmp_path, claude(logged_in=False))) as running:
        listed = [agent["name"] for agent in (await running.client.get("/meta")).json()["agents"]]
        state = await agent_state(running.client, "claude")
    assert "claude" not in listed
    assert (state["installed"], state["logged_in"], state["offered"]) == (True, False, False)
    assert "not logged in" in state["problem"] and "agents.claude.env" in state["problem"]


async def test_missing_program_is_reported_with_instructions(tmp_path: Path) -> None:
    async with run_gateway(claude_config(tmp_path, tmp_path / "nowhere")) as running:
        state = await agent_state(running.client, "claude")
    assert (state["installed"], state["offered"], state["version"]) == (False, False, None)
    assert state["problem"] == (
        f"agent 'claude' cannot start: its program '{tmp_path}/nowhere' does not exist; install it with "
        "`npm install -g @anthropic-ai/claude-code`, and set agents.claude.program to its path, or to its name on PATH"
    )


async def test_missing_program_that_no_command_installs(tmp_path: Path) -> None:
    (tmp_path / "text").touch()
    agents = {"unnamed": {"driver": "acp"}, "text": {"driver": "acp", "program": str(tmp_path / "text")}}
    async with run_gateway(gateway_config(tmp_path, agents=agents)) as running:
        unnamed, text = [(await agent_state(running.client, name))["problem"] for name in agents]
    assert unnamed.endswith("'acp-agent' is not on PATH; install it, or set agents.unnamed.program to its path")
    assert f"its program '{tmp_path}/text' is not an executable file; install it, and set agents.text.program" in text


async def test_probe_result_is_kept_over_a_restart_while_the_program_is_unchanged(tmp_path: Path, claude: Program) -> None:
    program = claude()
    async with run_gateway(claude_config(tmp_path, program)) as running:
        await running.client.get("/meta")
    known = json.loads((tmp_path / "data" / "discovery.json").read_text())
    assert any(probe["version"] == "2.1.329" for probe in known.values())
    # From here on the program does not respond, so the version can only come from the cache.
    program.write_text("#!/bin/sh\nsleep 60\n")
    os.utime(program, ns=(0, int(next(key for key in known if key.startswith("claude|")).split("|")[3])))
    async with run_gateway(claude_config(tmp_path, program)) as running:
        state = await asyncio.wait_for(agent_state(running.client, "claude"), 2)
    assert state["version"] == "2.1.329"


async def test_refresh_of_a_known_result_waits_until_sessions_have_started(
    tmp_path: Path, claude: Program, clock: ManualClock
) -> None:
    agents = Agents(parse(claude_config(tmp_path, claude())))

    async def calls_after(seconds: float) -> list[str]:
        discovery = Discovery(agents, tmp_path, Redactor(), probes_at_start=False, clock=clock)
        discovery.spawner = Spawner()
        (tmp_path / "calls").write_text("")
        assert (await discovery.probe(agents.get("claude"))).version == "2.1.329"
        await clock.advance(seconds)
        await discovery.settled()
        await discovery.close()
        return program_calls(tmp_path)

    assert len(await calls_after(0.0)) == 3, "without a result it is probed at once"
    assert await calls_after(REFRESH_DELAY - 0.1) == []
    assert len(await calls_after(REFRESH_DELAY)) == 3


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"a": []}', '{"a": {}}', json.dumps({"a": {**asdict(Probe("1")), "seeds": True}})]
)
def test_a_cache_that_cannot_be_read_is_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / "discovery.json").write_text(content)
    assert read_cache(tmp_path / "discovery.json") == {}


async def test_results_count_where_they_cannot_be_stored(
    tmp_path: Path, claude: Program, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data" / "discovery.new").mkdir(parents=True)
    async with run_gateway(claude_config(tmp_path, claude())) as running:
        await agent_state(running.client, "claude")
        await wait_for_probes(running.gateway)
        assert running.gateway.discovery.current(running.gateway.agents.get("claude")).version == "2.1.329"
    assert "the results of probes are not stored" in caplog.text and "Is a directory" in caplog.text


async def test_changed_program_is_probed_again(tmp_path: Path, claude: Program) -> None:
    async with run_gateway(claude_config(tmp_path, claude())) as running:
        assert (await agent_state(running.client, "claude"))["version"] == "2.1.329"
        claude(version="3.0.0")
        assert (await agent_state(running.client, "claude"))["version"] == "3.0.0"


def updates(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for record in caplog.records if " → " in (text := record.getMessage())]


async def test_update_is_logged_once_and_earlier_results_are_forgotten(
    tmp_path: Path, claude: Program, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway.agents.discovery")
    async with run_gateway(claude_config(tmp_path, claude(models=("opus",)))) as running:
        await agent_state(running.client, "claude")
        program = claude(version="2.1.330", models=("opus", "haiku"))
        for _ in range(2):
            state = await agent_state(running.client, "claude")
            assert (state["version"], state["models"]) == ("2.1.330", ["opus", "haiku"])
        assert updates(caplog) == ["agent 'claude': version 2.1.329 → 2.1.330"]
        # The same version in a new file is no update.
        os.utime(program, ns=(0, 1))
        assert (await agent_state(running.client, "claude"))["version"] == "2.1.330"
        assert len(updates(caplog)) == 1
    known = json.loads((tmp_path / "data" / "discovery.json").read_text())
    assert [key.split("|")[3] for key in known if key.startswith("claude|")] == ["1"]
    # An update while the daemon does not run.
    claude(version="2.1.331")
    async with run_gateway(claude_config(tmp_path, program)) as running:
        assert (await agent_state(running.client, "claude"))["version"] == "2.1.331"
    assert updates(caplog)[1:] == ["agent 'claude': version 2.1.330 → 2.1.331"]


@pytest.mark.parametrize("start", ["session", "task"])
async def test_update_is_noticed_when_the_program_is_started(
    start: str, tmp_path: Path, claude: Program, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway.agents.discovery")
    config = claude_config(tmp_path, claude(models=("opus",)))
    async with run_gateway(config) as running:
        await agent_state(running.client, "claude")
        claude(version="2.1.330", models=("haiku",))
        session = {"agent": {"name": "claude"}, "messages": [user_message("x")]}
        task = {"driver": "claude", "task": "x"}
        # The program answers no prompt.
        request = asyncio.create_task(
            running.client.put("/session", json=session) if start == "session" else running.client.post("/v1/execute", json=task)
        )
        await wait_until(lambda: updates(caplog) == ["agent 'claude': version 2.1.329 → 2.1.330"])
        assert running.gateway.agents.get("claude").models == ("haiku",)
        request.cancel()
        await asyncio.wait([request])


def test_results_of_an_earlier_version_do_not_stay() -> None:
    agent = Agents(parse({}), environ={"PATH": "/bin"}).get("claude")
    before = agent.info
    agent.apply_probe(Probe(models=("opus",), images=False, options=(Option("colour", "Colour", "Of the output."),)))
    assert agent.info != before and agent.models == ("opus",)
    agent.apply_probe(Probe())
    assert (agent.info, agent.models) == (before, ())


async def test_concurrent_requests_share_one_probe(tmp_path: Path, claude: Program) -> None:
    async with run_gateway(claude_config(tmp_path, claude())) as running:
        await asyncio.gather(*(running.client.get("/meta") for _ in range(20)))
    assert program_calls(tmp_path).count("--version") == 1


async def test_probes_that_end_together_are_all_in_the_cache(tmp_path: Path) -> None:
    file, known = tmp_path / "agents.json", dict[str, Probe]()

    def write(number: int) -> None:
        known[f"agent-{number}"] = Probe(version=str(number))
        write_cache(file, known)

    await asyncio.gather(*(asyncio.to_thread(write, number) for number in range(50)))
    assert json.loads(file.read_text()).keys() == known.keys()


async def agent_state(client: Any, name: str) -> dict[str, Any]:
    drivers = (await client.get("/v1/drivers")).json()["drivers"]
    return next(agent for driver in drivers for agent in driver["agents"] if agent["name"] == name)


TOO_OLD = (
    "agent 'claude' cannot be used: 2.1.100 is older than 2.1.148, the oldest version that is supported; update it with "
    "`npm install -g @anthropic-ai/claude-code`"
)
TASK = {"driver": "claude", "task": "hello", "idempotency_key": "once"}
REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/execute", TASK),
    ("PUT", "/session", {"agent": {"name": "claude"}, "messages": [{"role": "user", "content": "a"}]}),
    ("POST", "/aap/v3/sessions", {"agent": {"name": "claude"}}),
    ("POST", "/v1/chat/completions", {"model": "claude", "messages": [{"role": "user", "content": "a"}]}),
]


async def refused(client: httpx.AsyncClient) -> list[str]:
    """What each protocol answers, with nothing stored."""
    answers = [await client.request(method, path, json=body) for method, path, body in REFUSED]
    assert [answer.status_code for answer in answers] == [503] * len(REFUSED)
    assert (await client.get("/sessions")).json()["sessions"] == []
    errors = [answer.json()["error"] for answer in answers]
    return [error if isinstance(error, str) else error["message"] for error in errors]


async def test_a_program_below_the_oldest_supported_version_is_refused(tmp_path: Path, claude: Program) -> None:
    async with run_gateway(claude_config(tmp_path, claude("2.1.100"))) as running:
        state = await agent_state(running.client, "claude")
        assert (state["offered"], state["installed"], state["support"]) == (False, True, "unsupported")
        assert (state["version"], state["problem"]) == ("2.1.100", TOO_OLD)
        await wait_for_probes(running.gateway)
        calls = program_calls(tmp_path)
        assert await refused(running.client) == [TOO_OLD] * len(REFUSED)
        assert program_calls(tmp_path) == calls
        # What the error says. The key of the refused request is that of the new one.
        claude("2.1.330")
        answer = await running.client.post("/v1/execute", json=TASK)
    assert (answer.status_code, json.loads(last_data(answer.text))["kind"]) == (200, "session_end")


async def test_a_program_whose_files_have_an_unsupported_version_is_refused_before_it_was_probed(
    tmp_path: Path, claude: Program
) -> None:
    program = claude("2.1.100")
    package = tmp_path / "node_modules" / "claude-code"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"version": "2.1.100"}')
    async with run_gateway(claude_config(tmp_path, program.rename(package / "claude"))) as running:
        assert running.gateway.discovery.current(running.gateway.agents.get("claude")).problem == TOO_OLD
        assert await refused(running.client) == [TOO_OLD] * len(REFUSED)


async def test_a_program_that_is_updated_behind_the_same_file_is_used(
    tmp_path: Path, claude: Program, clock: ManualClock
) -> None:
    """As one that a version manager starts."""
    program = claude("2.1.100")
    for version in ("2.1.100", "2.1.330"):
        async with run_gateway(claude_config(tmp_path, program), clock) as running:
            assert (await agent_state(running.client, "claude"))["version"] == version
            if version == "2.1.330":
                break
            changed = program.stat().st_mtime_ns
            os.utime(claude("2.1.330"), ns=(changed, changed))
            assert await refused(running.client) == [TOO_OLD] * len(REFUSED)
            await clock.advance(MAX_AGE_PROBLEM + 1)
            answer = await running.client.post("/v1/execute", json=TASK)
            assert answer.status_code == 200


def last_data(stream: str) -> str:
    """Return the data of the last frame of a stream."""
    return sse.parse(stream)[-1].data


async def test_errors_of_the_start_have_the_version(tmp_path: Path, claude: Program) -> None:
    program = claude("2.1.200")
    async with run_gateway(claude_config(tmp_path, program)) as running:
        await agent_state(running.client, "claude")
        await wait_for_probes(running.gateway)
        changed = program.stat().st_mtime_ns
        program.write_text("#!/bin/sh\nexit 3\n")
        os.utime(program, ns=(changed, changed))
        body = {"agent": {"name": "claude"}, "messages": [{"role": "user", "content": "a"}]}
        answer = await running.client.put("/session", json=body)
    assert answer.status_code == 503
    assert answer.json()["error"].startswith("agent 'claude' (2.1.200) cannot start: the agent ended before it took a prompt")


async def test_drivers_reports_the_command_that_solves_a_problem(tmp_path: Path, claude: Program) -> None:
    async with run_gateway(claude_config(tmp_path, claude(logged_in=False))) as running:
        state = await agent_state(running.client, "claude")
        others = (await running.client.get("/v1/drivers")).json()["drivers"]
    assert state["command"] == state["login"] == f"{tmp_path}/claude auth login --claudeai"
    assert (state["configured"], state["probed"]) == (True, True)
    [codex] = next(driver["agents"] for driver in others if driver["driver"] == "codex")
    assert (codex["configured"], codex["command"]) == (False, "npm install -g @openai/codex")


async def test_an_unsupported_program_is_updated_before_a_person_logs_in(
    tmp_path: Path, claude: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude("1.0.119", logged_in=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    async with run_gateway(gateway_config(tmp_path)) as running:
        state = await agent_state(running.client, "claude")
    assert (state["logged_in"], state["support"]) == (False, "unsupported")
    assert state["command"] == "npm install -g @anthropic-ai/claude-code"


async def test_drivers_are_probed_anew_on_request(tmp_path: Path, claude: Program) -> None:
    async with run_gateway(claude_config(tmp_path, claude())) as running:
        assert (await agent_state(running.client, "claude"))["logged_in"] is True
        program = claude(logged_in=False)
        known = json.loads((tmp_path / "data" / "discovery.json").read_text())
        os.utime(program, ns=(0, int(next(key for key in known if key.startswith("claude|")).split("|")[3])))
        assert (await agent_state(running.client, "claude"))["logged_in"] is True
        await running.client.get("/v1/drivers?refresh=true")
        assert (await agent_state(running.client, "claude"))["logged_in"] is False


async def test_a_program_that_is_removed_meanwhile_is_not_known(
    tmp_path: Path, claude: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = claude()
    async with run_gateway(claude_config(tmp_path, program)) as running:
        agent, probing = running.gateway.agents.get("claude"), running.gateway.discovery
        assert (await probing.probe(agent)).version == "2.1.329"
        # It is found on PATH, and gone right after that.
        monkeypatch.setattr(agent, "program", lambda: str(program))
        program.unlink()
        found = await probing.probe(agent, refresh=True)
        assert (found.program, found.version, found.problem) == ("", None, "the program of agent 'claude' is being replaced")
        assert "null" not in json.loads((tmp_path / "data" / "discovery.json").read_text())
        assert [one for one in await probing.all_agents() if one.agent is agent] == [found]
        probing.notice_replacement(agent)
        await probing.refresh(agent)
        assert await probing.wait_for_probe(agent) in (None, found)


# -- what limits a probe ----------------------------------------------------------------------------------------------


async def test_a_probe_works_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """Another agent may have written settings in the working folder, which name programs."""
    work = tmp_path / "work"
    work.mkdir()
    code = f'pwd >> {tmp_path}/folders\n[ "$1" != --version ] || echo 2.1.329\n'
    program, names = write_script(tmp_path / "program", code), ("claude", "codex", "gemini", "acp")
    agents = {f"own-{name}": {"driver": name, "program": str(program), "cwd": str(work)} for name in names}
    async with run_gateway(gateway_config(tmp_path, agents=agents)) as running:
        for name in agents:
            await agent_state(running.client, name)
        await wait_for_probes(running.gateway)
        folders = {Path(line).relative_to(tmp_path / "data" / "temporary") for line in (tmp_path / "folders").read_text().split()}
        assert len({folder.parts[0] for folder in folders}) >= len(names)
        assert all(folder.parts[0].startswith("portico-probe-") for folder in folders)
    assert os.listdir(tmp_path / "data" / "temporary") == []


async def test_a_program_that_prints_without_an_end_is_stopped(tmp_path: Path) -> None:
    line = json.dumps({"jsonrpc": "2.0", "method": "unknown", "params": {"text": "x" * 1000}})
    program = write_script(tmp_path / "program", f"exec yes '{line}'\n")
    agents = {f"own-{name}": {"driver": name, "program": str(program)} for name in ("claude", "codex", "acp")}
    async with run_gateway(gateway_config(tmp_path, agents=agents)) as running:
        for name in agents:
            state = await agent_state(running.client, name)
            assert "it wrote more than 4096 KiB, and was stopped" in state["problem"], state


async def test_few_programs_are_probed_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, running, most, ended = asyncio.Event(), 0, 0, 0

    async def probe(self: EchoDriver, spec: AgentSpec, spawner: Spawner) -> Probe:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        ended += 1
        return Probe(version="1.0")

    monkeypatch.setattr(EchoDriver, "probe", probe)
    agents = {f"agent-{n}": {"driver": "echo"} for n in range(MAX_PROBES + 3)}
    found = Discovery(Agents(parse(gateway_config(tmp_path, agents=agents))), tmp_path, Redactor())
    found.spawner = Spawner(temporary=tmp_path)
    found.start()
    await wait_until(lambda: running == MAX_PROBES)
    release.set()
    await found.settled()
    await found.close()
    assert (most, ended >= len(agents)) == (MAX_PROBES, True)
