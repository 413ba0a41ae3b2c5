"""The processes of the real claude: their environment, and that none remains of a command."""

from __future__ import annotations

import signal

import httpx

from tests.real.aap_client import create_session, frames_of
from tests.real.conftest import DUMMY_KEY, Home
from tests.real.processes import cli_of, processes_of, running_process, wait_for_exit
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

GATEWAY_KEY = "portico-key-of-the-environment"
SLEEPER = "python3 -c 'import time; time.sleep(97)'"


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


async def _daemon_with_bash(home: Home) -> Daemon:
    home.agent["args"] = ["--allowedTools=Bash"]
    return await home.daemon()
