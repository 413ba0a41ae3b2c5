"""One session of each real CLI behind a daemon: a call that needs permission, a turn that is cancelled, and one after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import write_config
from tests.model_server import gemini as gemini_model
from tests.model_server import openai
from tests.real import conftest as claude
from tests.real import gemini
from tests.real.aap_client import frames_of, read_until_event, text_of, user
from tests.real.clis import BIN, require
from tests.real.codex import conftest as codex
from tests.real.models import model_on_loopback
from tests.real.processes import tear_down
from tests.support.daemon import Daemon, gateway_config
from tests.support.requests import create_session, send_turn

PLAIN = "Hello from the model, this is plain text."


@dataclass
class Cli:
    """A CLI with an empty home folder: the configuration of its agent, its tool for commands, and a prompt with a long answer."""

    home: Path
    work: Path
    agent: dict[str, Any]
    shell: str
    long_answer: str


@asynccontextmanager
async def _claude(base: Path) -> AsyncIterator[Cli]:
    async with model_on_loopback() as model:
        home = claude.make_home(base, require(BIN / "claude"), model.url)
        yield Cli(home.path, home.work, home.agent, "Bash", "[[slowtext]]")


@asynccontextmanager
async def _codex(base: Path) -> AsyncIterator[Cli]:
    async with openai.model_server() as model:
        home = codex.make_home(base, require(BIN / "codex"), model.url)
        yield Cli(home.path, home.work, home.agent, "shell", "[[slowtext]]")


@asynccontextmanager
async def _gemini(base: Path) -> AsyncIterator[Cli]:
    require(gemini.PROGRAM)
    home, work = base / "home", base / "work"
    home.mkdir()
    work.mkdir()
    async with gemini_model.model_server(gemini.SCENARIOS) as model:
        yield Cli(home, work, gemini.agent_config(home, work, model.url), gemini.SHELL, "[[slowcount]]")


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
async def test_a_permission_and_a_cancelled_turn(tmp_path: Path, name: str) -> None:
    clis: dict[str, Callable[[Path], AbstractAsyncContextManager[Cli]]] = {"claude": _claude, "codex": _codex, "gemini": _gemini}
    async with clis[name](tmp_path) as cli:
        config = gateway_config(tmp_path, agents={name: cli.agent}, limits={"start": 120.0})
        daemon = Daemon(write_config(tmp_path, config), tmp_path)
        await daemon.start()
        try:
            async with daemon.client() as client:
                client.timeout = 120
                made = cli.work / "made.txt"
                first = await create_session(client, name, "[[run:touch made.txt]]", grants=[{"name": cli.shell, "trust": False}])
                call = first["messages"][-1]["content"][-1]
                assert (first["stopReason"], call["name"], call["input"]["command"]) == ("tool_use", cli.shell, "touch made.txt")
                assert not made.exists()
                session, grant = (
                    first["sessionId"],
                    {"role": "tool_permission", "toolCallId": call["toolCallId"], "granted": True},
                )
                answered = await send_turn(client, session, grant)
                assert (answered["stopReason"], text_of(answered["messages"])) == ("end_turn", "The command ran.")
                assert [message["role"] for message in answered["messages"]] == ["tool", "assistant"]
                assert made.exists()

                body = {"messages": [user(cli.long_answer)], "stream": "delta"}
                async with frames_of(client, "POST", f"/session/{session}", body) as frames:
                    await read_until_event(frames, "text_delta")
                    assert (await client.post(f"/session/{session}/cancel")).json()["cancelled"]
                    kind, data = [frame async for frame in frames][-1]
                    assert (kind, data["stopReason"]) == ("turn_stop", "end_turn")
                assert text_of((await send_turn(client, session, "[[plain]]"))["messages"]) == PLAIN
            assert await daemon.stop() == 0
        finally:
            await tear_down(cli.home, [daemon])
