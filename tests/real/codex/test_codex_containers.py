"""The real codex in bwrap and in a container of podman. Its commands have no sandbox of codex there, which could not be made."""

from __future__ import annotations

import pytest

from tests.real.aap_client import calls_of, grant, result, results_of, text_of
from tests.real.clis import CLIS
from tests.real.codex.aap_client import create_session
from tests.real.codex.conftest import Home
from tests.real.codex.test_codex_app_tools import WEATHER
from tests.real.processes import processes_of, running_process, wait_for_exit
from tests.support.container_runtimes import put_into

RUNTIMES = pytest.mark.parametrize("runtime", ["bwrap", "podman"])
SLEEPER = "python3 -c 'import time; time.sleep(97)'"


@RUNTIMES
async def test_approved_command_and_application_side_tool(home: Home, runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_into(runtime, home.agent, home.path, monkeypatch, CLIS.resolve())
    script = "pwd; touch made; touch /usr/made"
    async with home.gateway() as running:
        aap = await create_session(running.client, f"[[run:{script}]]", own={"shell": False}, app=[WEATHER], stop="tool_use")
        (call,) = calls_of(aap.first["messages"])
        answer = await aap.send(grant(call))
        (output,) = results_of(answer["messages"]).values()
        assert output.startswith(f"{home.work}\n") and "Read-only file system" in output
        assert (home.work / "made").exists()
        answer = await aap.send({"role": "user", "content": "[[weather]]"})
        assert answer["stopReason"] == "tool_use"
        (call,) = calls_of(answer["messages"])
        answer = await aap.send(result(call, "18 degrees"))
        assert text_of(answer["messages"]) == "It is mild in Tokyo."


@RUNTIMES
async def test_cancelled_command_and_resumption(home: Home, runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = put_into(runtime, home.agent, home.path, monkeypatch, CLIS.resolve())
    daemon = await home.daemon(variables)
    async with daemon.client() as client:
        aap = await create_session(client, "[[plain]] one", own={"shell": True, "apply_patch": True})
        async with aap.open_stream(f"[[run:{SLEEPER}]]") as frames:
            sleeper = await running_process(home.path, "python")
            assert (await client.post(f"/session/{aap.id}/cancel")).json()["cancelled"]
            assert [name async for name, _ in frames][-1] == "turn_stop"
        await wait_for_exit(sleeper.pid)
        other = await create_session(client, "[[plain]] one")
    threads = sorted(home.threads())
    assert await daemon.stop() == 0
    assert processes_of(home.path) == []
    await daemon.start()
    async with daemon.client() as client:
        assert (await other.with_client(client).send_turn("[[recall]]")) == "I see 2 user texts. Before this one: [[plain]] one"
    assert sorted(home.threads()) == threads, "it was resumed, and not seeded"
