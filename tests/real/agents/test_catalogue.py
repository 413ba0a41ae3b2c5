"""The tested agents of the catalogue: each does with its real program what the table on docs/drivers/acp.md says.

One test is one agent, without a configuration: its program is on PATH. It uses two processes: the session's first one, and the
one that resumes it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from drivers.acp.codec import AcpCodec
from drivers.acp.driver import AcpDriver
from drivers.contract.agent_specs import SessionSpec
from drivers.contract.codec import Launch
from tests.model_server.chat_completions import model_server
from tests.model_server.serving import ModelServer
from tests.real.aap_client import AapSession, text_of
from tests.real.agents.programs import AGENTS, BIN, NOWHERE, RealAgent, program
from tests.real.agents.table import columns
from tests.real.processes import processes_of, tear_down
from tests.real.real_cli import CLOCK, PLAIN, WEATHER
from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(400)


@dataclass
class Bench:
    """One agent in a gateway, with its model server, home folder and working folder. `codecs` are those of its
    processes, `seen` the cells of its column."""

    agent: RealAgent
    running: RunningGateway
    model: ModelServer
    home: Path
    work: Path
    codecs: list[AcpCodec]
    seen: dict[str, str] = field(default_factory=dict)

    async def create(self, text: str, **more: Any) -> httpx.Response:
        grants = [{"name": "execute"}, {"name": "edit"}]
        body = {"agent": {"name": self.agent.name, "tools": grants}, "messages": [{"role": "user", "content": text}], **more}
        return await self.running.client.put("/session", json=body)


@pytest.fixture(params=sorted(AGENTS))
async def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    agent, home, folder = AGENTS[request.param], tmp_path / "home", tmp_path / "bin"
    for new in (home, folder):
        new.mkdir()
    for file in (program(agent.name), BIN / "node"):
        (folder / file.name).symlink_to(file)
    async with model_server(agent.scenarios()) as model:
        variables = {"HOME": str(home), "PATH": f"{folder}:/usr/bin:/bin", **agent.prepare(home, f"{model.url}/v1")}
        proxies = {"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1,localhost"}
        for name, value in (variables | proxies).items():
            monkeypatch.setenv(name, value)
        codecs: list[AcpCodec] = []
        session = AcpDriver.session

        def recorded(driver: AcpDriver, spec: SessionSpec) -> Launch:
            launch = session(driver, spec)
            assert isinstance(launch.codec, AcpCodec)
            codecs.append(launch.codec)
            return launch

        monkeypatch.setattr(AcpDriver, "session", recorded)
        async with run_gateway(gateway_config(tmp_path, limits={"start": 120.0, "grace": 2.0})) as running:
            running.client.timeout = httpx.Timeout(180)
            yield Bench(agent, running, model, home, tmp_path / "data" / "workspaces" / agent.name, codecs)
        await tear_down(home, ())


async def test_an_agent_does_what_the_table_says(bench: Bench) -> None:
    created = await bench.create("hello [[plain]]", tools=[WEATHER])
    assert created.status_code == 201, created.text
    first = created.json()
    aap = AapSession(bench.running.client, first["sessionId"], first)
    assert text_of(first["messages"]) == PLAIN
    await think(bench, aap)
    await ask(bench, aap)
    await call_app_tool(bench, aap)
    await cancel(bench, aap)
    await resume(bench, aap)
    await refuse_history(bench)
    declared(bench)
    assert bench.seen == columns()[bench.agent.name]


async def think(bench: Bench, aap: AapSession) -> None:
    await aap.send({"role": "user", "content": "[[think]]"})
    blocks = [block for message in aap.last["messages"] for block in blocks_of(message)]
    thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    assert text_of(aap.last["messages"]).endswith("The answer is 42.")
    bench.seen["text, thinking"] = "yes, yes" if thoughts == ["Let me think about this carefully."] else "yes, no"
    bench.seen["tokens used"] = "yes" if aap.last.get("x-portico", {}).get("usage", {}).get("outputTokens") else "no"


async def ask(bench: Bench, aap: AapSession) -> None:
    """The client is asked once about each call, sees what it does, and decides: in a git work tree, in which kimi itself does not
    ask."""
    git = await asyncio.create_subprocess_exec("git", "init", "-q", str(bench.work))
    assert await git.wait() == 0
    goes_on = []
    for scenario, kind in (("run", "execute"), ("write", "edit")):
        for granted in (False, True):
            made = bench.work / f"{scenario}-{granted}"
            argument = f"touch {made.name}" if scenario == "run" else str(made)
            await aap.send({"role": "user", "content": f"[[{scenario}:{argument}]]"})
            call = aap.pending_call()
            assert call["name"] == kind
            assert argument in json.dumps(call["input"]) and (scenario == "run" or "written" in json.dumps(call["input"]))
            assert not made.exists()
            await aap.permit(granted)
            assert aap.last["stopReason"] == "end_turn", aap.last
            assert made.exists() is granted
            if not granted:
                assert "The user did not permit this tool call." in aap.results()
                goes_on.append(text_of(aap.last["messages"]).endswith(("The command ran.", "It is written.")))
    bench.seen["a command, a file: asks before"] = "yes, yes"
    assert len(set(goes_on)) == 1
    bench.seen["after a refusal"] = "goes on" if goes_on[0] else "ends its turn"


async def call_app_tool(bench: Bench, aap: AapSession) -> None:
    """One stop, by the client's name of the tool, without a permission."""
    await aap.send({"role": "user", "content": "[[weather]]"})
    calls = [block for message in aap.last["messages"] for block in blocks_of(message) if block["type"] == "tool_use"]
    assert [(call["name"], call["input"]) for call in calls] == [("get_weather", {"location": "Tokyo"})]
    await aap.send({"role": "tool", "toolCallId": calls[0]["toolCallId"], "content": "18 degrees"})
    assert (aap.last["stopReason"], text_of(aap.last["messages"])) == ("end_turn", "It is mild in Tokyo.")
    assert any("18 degrees" in json.dumps(body["messages"][-1]) for body in bench.model.bodies("weather"))
    bridges = processes_of(bench.home, command="drivers.acp.mcp_bridge")
    bench.seen["application-side tools"] = "by the bridge" if bridges else "by HTTP"


async def cancel(bench: Bench, aap: AapSession) -> None:
    turn = asyncio.create_task(aap.send({"role": "user", "content": "[[slowcount]]"}))
    await wait_until(lambda: bool(bench.model.bodies("slowcount")), "the model has a request")
    answer = await bench.running.client.post(f"/session/{aap.id}/cancel")
    assert answer.json() == {"sessionId": aap.id, "cancelled": True, "state": "idle"}
    await turn
    assert await aap.send_turn("[[plain]]") == PLAIN
    bench.seen["cancel"] = "yes"


async def resume(bench: Bench, aap: AapSession) -> None:
    """Other tools need another process."""
    before = {process.pid for process in processes_of(bench.home)}
    await aap.send({"role": "user", "content": "[[recall]]"}, tools=[WEATHER, CLOCK])
    recalled = text_of(aap.last["messages"])
    assert before.isdisjoint(process.pid for process in processes_of(bench.home))
    assert recalled.count("Before this one: hello [[plain]] | [[think]] | [[run:") == 1, recalled
    bench.seen["resumed in another process"] = "yes"


async def refuse_history(bench: Bench) -> None:
    history = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    answer = await bench.create("", messages=[*history, {"role": "user", "content": "three"}])
    assert answer.status_code == 400 and "history" in answer.text, answer.text
    bench.seen["history of another session"] = "refused"


def declared(bench: Bench) -> None:
    """What the program has reported of itself by the end of its first process."""
    reported = bench.codecs[0].session
    assert reported.agent is not None and reported.agent.agent_info is not None
    bench.seen["version"] = reported.agent.agent_info.version
    bench.seen["images"] = "yes" if reported.images else "no"
    bench.seen["additional directories"] = "yes" if reported.additional_directories else "no"
    bench.seen["models"] = "listed" if reported.models else "not listed"
    bench.seen["slash commands"] = "listed" if reported.commands else "not listed"


def blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) and message["role"] == "assistant" else []
