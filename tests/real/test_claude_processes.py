"""The processes of the real claude: their arguments in `ps`, their environment, and that none remains."""

from __future__ import annotations

import asyncio
import signal

import httpx
import psutil
import pytest

from tests.real.aap_client import create_session, frames_of, read_until_event
from tests.real.conftest import DUMMY_KEY, Home
from tests.real.processes import arguments, cli_of, clis_of, processes_of, running_process, wait_for_exit
from tests.support.daemon import Daemon, RunningGateway
from tests.support.waiting import wait_until

PROMPT, SYSTEM, SECRET = "Xylophones of the prompt", "Quagga of the system", "sk-ant-secret-of-ps-123456"
GATEWAY_KEY = "portico-key-of-the-environment"
SLEEPER = "python3 -c 'import time; time.sleep(97)'"


@pytest.mark.parametrize("way", ["append", "replace"])
async def test_ps_shows_nothing_of_a_turn(portico: RunningGateway, home: Home, way: str) -> None:
    options = {"api_key": SECRET, "system_prompt": way}
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{PROMPT} [[slowtext]]"}]
    body = {"agent": {"name": "claude", "options": options}, "messages": messages, "stream": "delta"}
    async with frames_of(portico.client, "PUT", "/session", body) as frames:
        await read_until_event(frames, "text_delta")
        _assert_hidden(psutil.Process())


async def test_ps_shows_nothing_of_a_task(portico: RunningGateway, home: Home) -> None:
    body = {"driver": "claude", "task": f"{PROMPT} [[slowtext]]"}
    async with frames_of(portico.client, "POST", "/v1/execute", body) as frames:
        await read_until_event(frames, "message", "agent_token")
        _assert_hidden(psutil.Process())


async def test_ps_shows_nothing_of_a_seed(portico: RunningGateway, home: Home) -> None:
    await create_session(portico.client, PROMPT, {"role": "assistant", "content": SYSTEM}, "[[plain]]", api_key=SECRET)
    _assert_hidden(psutil.Process())
    (file,) = home.session_files()
    assert file.stat().st_mode & 0o077 == 0, "the session file is private"


def _assert_hidden(root: psutil.Process) -> None:
    shown = " ".join(arguments(root))
    assert "stream-json" in shown
    for word in (PROMPT, SYSTEM, SECRET, DUMMY_KEY):
        assert word not in shown


async def test_the_environment_of_the_cli_excludes_the_secrets_of_the_gateway(home: Home) -> None:
    given = {"PORTICO_API_KEY": GATEWAY_KEY, "AWS_SECRET_ACCESS_KEY": "not-for-agents", "CLAUDE_CODE_EFFORT_LEVEL": "low"}
    daemon = await home.daemon(given)
    async with httpx.AsyncClient(base_url=daemon.url, headers={"Authorization": f"Bearer {GATEWAY_KEY}"}, timeout=60) as client:
        await create_session(client, "[[plain]] hello")
    environment = cli_of(home.path).environ()
    assert GATEWAY_KEY not in environment.values() and "not-for-agents" not in environment.values()
    assert [name for name in environment if name.startswith("PORTICO_")] == ["PORTICO_AGENT_ID"]
    # Variables of the vendor are passed on; those of the agent override those of the gateway.
    assert environment["CLAUDE_CODE_EFFORT_LEVEL"] == "low"
    assert (environment["HOME"], environment["ANTHROPIC_API_KEY"]) == (str(home.path), DUMMY_KEY)


async def test_nothing_is_left_of_idle_sessions_when_the_daemon_stops(home: Home) -> None:
    daemon = await home.daemon()
    async with daemon.client() as client:
        await create_session(client, "[[plain]] one")
        await create_session(client, "[[plain]] two")
    assert len(clis_of(home.path)) == 2
    assert await daemon.stop(signal.SIGINT) == 0
    assert processes_of(home.path) == []


async def test_nothing_is_left_of_a_running_command_when_the_daemon_stops(home: Home) -> None:
    daemon = await _daemon_with_bash(home)
    body = {"driver": "claude", "task": f"[[run:{SLEEPER}]]"}
    async with daemon.client() as client, frames_of(client, "POST", "/v1/execute", body) as frames:
        await running_process(home.path, "python")
        assert await daemon.stop() == 0
        last = [data async for _, data in frames][-1]
    assert (last["kind"], last["exit_code"]) == ("session_end", 1)
    assert processes_of(home.path) == []


async def test_nothing_is_left_of_a_running_command_when_a_killed_daemon_is_back(home: Home) -> None:
    daemon = await _daemon_with_bash(home)
    async with daemon.client() as client:
        body = {"driver": "claude", "task": f"[[run:{SLEEPER}]]", "idempotency_key": "once"}
        async with frames_of(client, "POST", "/v1/execute", body):
            sleeper = await running_process(home.path, "python")
            await daemon.kill()
    assert sleeper.is_running()
    await daemon.start()
    await wait_for_exit(sleeper.pid)
    await wait_until(lambda: processes_of(home.path) == [], "the CLIs of the first daemon and the probes have ended")
    async with daemon.client() as client, frames_of(client, "POST", "/v1/execute", body) as frames:
        events = [data async for _, data in frames]
    assert [event["kind"] for event in events[-2:]] == ["error", "session_end"]


async def test_nothing_is_left_of_a_running_command_when_the_cli_is_killed(home: Home) -> None:
    home.agent["args"] = ["--allowedTools=Bash"]
    async with home.gateway() as portico:
        body = {"driver": "claude", "task": f"[[run:{SLEEPER}]]"}
        async with frames_of(portico.client, "POST", "/v1/execute", body) as frames:
            await running_process(home.path, "python")
            cli_of(home.path).kill()
            events = [data async for _, data in frames]
        assert events[-1]["exit_code"] == -signal.SIGKILL
        await wait_until(lambda: processes_of(home.path) == [], "the command has ended")


async def test_a_task_leaves_no_process(portico: RunningGateway, home: Home) -> None:
    tasks = [{"driver": "claude", "task": f"[[echo:{n}]]"} for n in range(2)]
    answers = await asyncio.gather(*(portico.client.post("/v1/execute", json=task) for task in tasks))
    assert [f'"text":"{n}"' in answer.text for n, answer in enumerate(answers)] == [True, True]
    await wait_until(lambda: processes_of(home.path) == [], "the CLIs have ended")


async def _daemon_with_bash(home: Home) -> Daemon:
    home.agent["args"] = ["--allowedTools=Bash"]
    return await home.daemon()
