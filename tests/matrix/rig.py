"""A daemon with one release of a CLI as its agent, an empty home folder, a model server on loopback, and a client of AAP."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.conftest import write_config
from tests.matrix.clis import Cli
from tests.model_server.serving import ModelServer
from tests.real.aap_client import frames_of, text_of, user
from tests.real.codex.aap_client import calls_of
from tests.real.processes import clis_of, processes_of, wait_for_exit
from tests.support.daemon import Daemon, gateway_config
from tests.support.waiting import wait_until

START_SECONDS = 25.0
"""`limits.start` of the daemon: its error says what the CLI did, before the check reaches its own limit."""

Json = dict[str, Any]


class CheckFailed(Exception):
    """What a check found."""


def expect(condition: object, why: str) -> None:
    """Raise CheckFailed unless the condition holds."""
    if not condition:
        raise CheckFailed(why)


@dataclass
class Rig:
    """The parts of one run. `work` is the folder of the agent."""

    cli: Cli
    base: Path
    model: ModelServer
    daemon: Daemon

    @property
    def home(self) -> Path:
        return self.base / "home"

    @property
    def work(self) -> Path:
        return self.base / "work"

    async def create(self, *messages: str | Json, app: Sequence[Json] = (), own: dict[str, bool] | None = None) -> Session:
        """Create a session. A message that is a string is a user message; `own` are the agent's tools with their trust."""
        tools = [{"name": name, "trust": trust} for name, trust in (own or {}).items()]
        body = {"agent": {"name": self.cli.name, "tools": tools}, "tools": list(app), "messages": _messages(messages)}
        session = Session(self, "", {})
        await session.request("PUT", "/session", body)
        session.id = session.last["sessionId"]
        return session

    async def execute(self, task: str) -> list[Json]:
        """The events of a task by `POST /v1/execute`."""
        body = {"driver": self.cli.name, "task": task}
        async with self.daemon.client() as client, frames_of(client, "POST", "/v1/execute", body) as frames:
            return [data async for _, data in frames]

    async def end_clis(self) -> None:
        """Kill the processes of the CLI, and wait until the daemon has noticed."""
        for process in clis_of(self.home):
            process.kill()
            pid = process.pid
            await wait_until(lambda pid=pid: not psutil.pid_exists(pid), "the daemon has reaped its CLI")  # type: ignore[misc]

    async def restart(self, *, kill: bool = False) -> None:
        """End the daemon by SIGTERM, or by SIGKILL, and start it again when its CLIs have ended."""
        pids = [process.pid for process in clis_of(self.home)]
        await (self.daemon.kill() if kill else self.daemon.stop())
        await self.daemon.start()
        for pid in pids:
            await wait_for_exit(pid)

    def request_text(self, scenario: str) -> str:
        """The newest model request that this scenario has answered, as JSON."""
        found = [request.body for request in self.model.requests if request.scenario == scenario]
        expect(found, f"the model has received no request for {scenario}")
        return json.dumps(found[-1], ensure_ascii=False)


@dataclass
class Session:
    """A session over AAP in stream mode `none`; `last` is the newest response."""

    rig: Rig
    id: str
    last: Json

    async def request(self, method: str, path: str, body: Json) -> None:
        """Send a request and keep its response. Raises CheckFailed with the error of the gateway."""
        async with self.rig.daemon.client() as client:
            answer = await client.request(method, path, json=body)
        expect(answer.status_code < 300, f"{answer.status_code} {_error_of(answer)}")
        self.last = answer.json()

    async def send(self, *messages: str | Json) -> None:
        await self.request("POST", f"/session/{self.id}", {"messages": _messages(messages)})

    def text(self) -> str:
        """The text of the newest turn, which must have ended."""
        more = self.last.get("x-portico", {}).get("error", "")
        expect(self.last["stopReason"] == "end_turn", f"the turn stopped with {self.last['stopReason']} {more}".strip())
        return text_of(self.last["messages"])

    def open_calls(self) -> list[Json]:
        """The calls that the newest turn waits for."""
        expect(self.last["stopReason"] == "tool_use", f"the turn stopped with {self.last['stopReason']}, not to ask for a call")
        return calls_of(self.last["messages"][-1:])

    async def delete(self) -> None:
        async with self.rig.daemon.client() as client:
            await client.delete(f"/session/{self.id}")


def _messages(given: Sequence[str | Json]) -> list[Json]:
    return [user(message) if isinstance(message, str) else message for message in given]


def _error_of(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError):
        return answer.text


@asynccontextmanager
async def open_rig(cli: Cli, bin_folder: Path) -> AsyncIterator[Rig]:
    """A rig with the program in this folder, for the length of the block; its processes are ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="portico-matrix-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        base = Path(name)
        home, work = base / "home", base / "work"
        home.mkdir()
        work.mkdir()
        async with cli.model_server(cli.scenarios()) as model:
            env = {"HOME": str(home), "PATH": f"{bin_folder}:{os.environ['PATH']}", **cli.prepare(home, model.url)}
            agent = {"driver": cli.name, "cwd": str(work), "env": env, "options": {"mode": "ask"}}
            config = gateway_config(base, agents={cli.name: agent}, limits={"start": START_SECONDS})
            daemon = Daemon(write_config(base, config), base)
            try:
                await daemon.start()
                async with daemon.client() as client:
                    # The daemon has probed the CLI when it answers. codex (0.145) fails if two of its processes create their
                    # database in an empty home at the same time.
                    await client.get("/meta")
                yield Rig(cli, base, model, daemon)
            finally:
                await _end(daemon, home)


async def _end(daemon: Daemon, home: Path) -> None:
    if daemon.process is not None and daemon.process.returncode is None:
        await daemon.stop()
    for process in processes_of(home):
        with suppress(psutil.NoSuchProcess):
            process.kill()
            await wait_for_exit(process.pid)
