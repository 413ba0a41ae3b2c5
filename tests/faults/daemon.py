"""The daemon under test: a real `portico serve` in its own process, its agents' files, and conversations with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

import tests.support.daemon
from tests.faults import oracles
from tests.faults.agent import SLEEP
from tests.support.requests import with_extensions
from tests.support.sse import NumberedEvent as Frame
from tests.support.sse import StreamParser, numbered

ROOT = Path(__file__).parent.parent.parent
DRIVER = Path(__file__).parent / "driver"
KEY = "faults-key-0123456789"
GRACE = 1.0
"""`limits.grace` of every daemon, in seconds."""
TOLERANCE = 1.0
"""Seconds that the harness adds to each time limit: it keeps both cores at work itself."""
BOUND = GRACE + 2.0 + TOLERANCE
"""Seconds within which every call is answered and every process has ended."""
CLIENT_SECONDS = 20.0
STOP_SECONDS = 15.0
AGENTS: dict[str, Sequence[str]] = {
    "faulty": (),
    "stubborn": ("--ignore-interrupt",),
    "clean": ("--clean", "--ignore-eof", "--ignore-interrupt"),
    "immortal": ("--ignore-eof", "--ignore-interrupt", "--ignore-term"),
    "slow": ("--start-delay", "2"),
}
"""The faulty agents by name, with the arguments of each."""


def prompt(prompt_id: str, *steps: list[Any]) -> dict[str, Any]:
    """A user message for the faulty agent."""
    return {"role": "user", "content": json.dumps({"id": prompt_id, "do": steps or [["text", 2, 0]]})}


@dataclass
class Turn:
    """What a client received of one turn. `seconds` is the time until the response began, `ended` until it was complete."""

    prompt: str = ""
    status: int = 0
    frames: list[Frame] = field(default_factory=list)
    body: str = ""
    seconds: float = 0.0
    ended: float = 0.0
    broken: str = ""

    @property
    def text(self) -> str:
        return oracles.text_of(self.frames)

    @property
    def stop(self) -> dict[str, Any] | None:
        """The data of its `turn_stop`."""
        return next((data for _, name, data in self.frames if name == "turn_stop"), None)


class Client(httpx.AsyncClient):
    """A client of a daemon. `stored_first`: the daemon sends events once they are stored, so that none of them may be lost."""

    stored_first = False


class Daemon(tests.support.daemon.Daemon):
    """`portico serve` with the faulty agents. `faults` runs it by the launcher, which reads the file `faults.json`.

    `traced`: its writes are recorded. `prefix` is a program with arguments that runs the command line that follows.
    """

    log_mode = "ab"
    own_session = True
    process: asyncio.subprocess.Process | None

    def __init__(
        self,
        home: Path,
        limits: Mapping[str, float] = {},
        tables: Mapping[str, dict[str, Any]] = {},
        faults: bool = False,
        traced: bool = True,
        command: Sequence[str] = (),
    ) -> None:
        super().__init__(home / "portico.toml", home, forked=False)
        self.tables, self.faults, self.traced, self.prefix = tables, faults, traced, command
        self.starts = 0
        self.fault_id = self.inject_id = ""
        for folder in ("data", "work", "user"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        limits = {"grace": GRACE, "live_agents": 64, "running_turns": 256, **limits}
        written: dict[str, dict[str, Any]] = {
            "server": {"data_dir": str(self.home / "data"), "port": 0, "log_level": "info"},
            "auth": {"keys": [KEY]},
            "limits": limits,
        }
        for name, args in AGENTS.items():
            written[f"agents.{name}"] = {
                "driver": "faulty",
                "cwd": str(self.home / "work"),
                "args": ["--folder", str(self.home / "work"), *args],
            }
        for name, table in tables.items():
            written[name] = {**written.get(name, {}), **table}
        lines = [
            line
            for name, table in written.items()
            for line in (f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()), "")
        ]
        self.config.write_text("\n".join(lines))
        (self.work / "processes.log").touch()
        if self.faults:
            self.inject()

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def work(self) -> Path:
        return self.home / "work"

    # -- the process --------------------------------------------------------------------------------------------------

    async def spawn(self) -> None:
        self.starts += 1
        await super().spawn()

    def command(self) -> Sequence[str]:
        module = "tests.faults.launcher" if self.faults else "gateway"
        return (*self.prefix, sys.executable, "-m", module, "serve", "--config", str(self.config))

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join((str(DRIVER), str(ROOT)))
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home / "user"), "LANG": "C.UTF-8", "PYTHONPATH": path}
        env["PYTHONFAULTHANDLER"] = "1"
        # Its open files are counted.
        env["PORTICO_ALLOW_INSPECTION"] = "1"
        if self.faults:
            env["FAULTS"] = str(self.home / "faults.json")
            if self.traced:
                env["FAULTS_TRACE"] = str(self.trace)
        return env

    async def end(self, seconds: float = STOP_SECONDS) -> tuple[int | None, float]:
        """Send SIGTERM and wait. Return the exit code, None if it had to be killed after `seconds`, and the time it took."""
        assert self.process is not None
        began = time.monotonic()
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.communicate(), seconds)
        except TimeoutError:
            await self.kill()
            return None, time.monotonic() - began
        return self.process.returncode, time.monotonic() - began

    # -- injected faults ----------------------------------------------------------------------------------------------

    @property
    def trace(self) -> Path:
        return self.home / "writes.log"

    def inject(self, **plan: Any) -> str:
        """Replace the faults of the launcher; without arguments there are none. Return the id of the plan."""
        plan_id = self.inject_id = uuid.uuid4().hex[:8]
        path = self.home / "faults.new"
        path.write_text(json.dumps({"id": plan_id, **plan}))
        path.replace(self.home / "faults.json")
        return plan_id

    def writes(self, plan_id: str) -> list[tuple[int, str]]:
        """The writes since the plan was injected: (number of the transaction, such as `INSERT runs`)."""
        if not self.trace.exists():
            return []
        found = [json.loads(line) for line in self.trace.read_text().splitlines()]
        return [(transaction, what) for plan, transaction, what in found if plan == plan_id]

    # -- the agents' files --------------------------------------------------------------------------------------------

    def prompts(self) -> list[dict[str, Any]]:
        """What the agents were given."""
        path = self.work / "prompts.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def left(self) -> list[str]:
        """The processes of agents that still run, and all that they started."""
        lines = (self.work / "processes.log").read_text().splitlines()
        return [f"{kind} {pid}" for pid, kind in (line.split() for line in lines) if is_running(int(pid), self.home)]

    def started(self, kind: str) -> list[int]:
        """The ids of the processes of this kind that an agent has started, ended ones included."""
        lines = (self.work / "processes.log").read_text().splitlines()
        return [int(pid) for pid, found in (line.split() for line in lines) if found == kind]

    async def none_left(self, seconds: float = BOUND) -> list[str]:
        """Wait until no process of an agent runs. Return those that do after `seconds`."""
        deadline = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        return [f"left running: {', '.join(left)}"] if left else []

    def end_left(self) -> None:
        """Kill what a failed case has left running."""
        for line in (self.work / "processes.log").read_text().splitlines():
            pid = int(line.split()[0])
            if is_running(pid, self.home):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def client(self, seconds: float = CLIENT_SECONDS) -> Client:
        """A client with the key, whose requests may take so long."""
        headers = {"Authorization": f"Bearer {KEY}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        client = Client(base_url=self.url, headers=headers, timeout=seconds, limits=limits, verify=False, trust_env=False)
        client.stored_first = self.tables.get("store", {}).get("durability") == "stored-first"
        return client


def is_running(pid: int, home: Path) -> bool:
    """Whether the process is one that an agent of this folder has recorded, not a later one with the same id."""
    try:
        process = psutil.Process(pid)
        arguments = process.cmdline()
        return process.status() != psutil.STATUS_ZOMBIE and (
            SLEEP in arguments or any(str(home) in argument for argument in arguments)
        )
    except psutil.Error:
        return False


class Conversation:
    """One session, and all that its clients receive. `client` may be replaced when the daemon has been restarted."""

    def __init__(self, client: Client, agent: str = "faulty", name: str = "") -> None:
        self.client, self.agent = client, agent
        self.name = name or uuid.uuid4().hex[:6]
        self.id = ""
        self.seen: list[Frame] = []
        self.prompts = 0
        self.may_lose = not client.stored_first
        """Whether what was seen may be in a gap of the log."""

    def next_prompt(self) -> str:
        self.prompts += 1
        return f"{self.name}-{self.prompts}"

    async def create(self, **fields: Any) -> Conversation:
        """Create the session without a turn. Raises RuntimeError."""
        body = {"agent": {"name": self.agent, "tools": [{"name": "act"}]}, **fields}
        answer = await self.client.post("/aap/v3/sessions", json=body)
        if answer.status_code != 201:
            raise RuntimeError(f"POST /sessions: {answer.status_code} {answer.text}")
        self.id = answer.json()["sessionId"]
        return self

    async def turn(
        self, *steps: list[Any], prompt_id: str = "", key: str = "", until: str = "", turn: Turn | None = None, **fields: Any
    ) -> Turn:
        """Run a turn in `delta` mode. With `until` the client disconnects at the first text that contains it."""
        name = prompt_id or self.next_prompt()
        return await self.post([prompt(name, *steps)], turn or Turn(prompt=name), key=key, until=until, **fields)

    async def answer(self, call: str, turn: Turn | None = None, **fields: Any) -> Turn:
        """Permit a pending call and receive the turn."""
        message = {"role": "tool_permission", "toolCallId": call, "granted": True}
        return await self.post([message], turn or Turn(), **fields)

    async def post(self, messages: list[Any], turn: Turn, *, key: str = "", until: str = "", **fields: Any) -> Turn:
        """Send messages and receive the turn, in `delta` mode. A lost connection is `broken` in the result."""
        turn.prompt = turn.prompt or self.name
        began = time.monotonic()
        headers = {"Idempotency-Key": key} if key else {}
        body = {"messages": messages, "stream": "delta", **fields}
        parser, refused = StreamParser(), b""
        try:
            async with self.client.stream("POST", f"/session/{self.id}", json=body, headers=headers) as response:
                turn.status, turn.seconds = response.status_code, time.monotonic() - began
                async for chunk in response.aiter_raw():
                    if response.status_code != 200:
                        refused += chunk
                        continue
                    new = parser.feed(chunk)
                    turn.frames += new
                    self.seen += new
                    if until and until in turn.text:
                        break
        except httpx.HTTPError as error:
            turn.broken = f"{type(error).__name__}: {error}"
        if turn.status != 200:
            turn.body = refused.decode("utf-8", "replace")
        turn.ended = time.monotonic() - began
        return turn

    async def replay(self, mode: str = "delta") -> list[Frame]:
        """All frames of an idle session's log."""
        found: list[Frame] = []
        while True:
            query = {"after": found[-1][0] if found else "0", "until": "turn_stop", "stream": mode}
            answer = await self.client.get(f"/session/{self.id}/events", params=query)
            if answer.status_code != 200:
                raise RuntimeError(f"GET /events: {answer.status_code} {answer.text}")
            more = numbered(answer.content)
            if not more:
                return found
            found += more

    async def session(self) -> dict[str, Any]:
        answer = await self.client.get(f"/session/{self.id}")
        if answer.status_code != 200:
            raise RuntimeError(f"GET /session: {answer.status_code} {answer.text}")
        return with_extensions(answer.json())

    # -- oracles ------------------------------------------------------------------------------------------------------

    async def check(self, turns: int = 3) -> list[str]:
        """The next turns answer their own prompts, what was seen is in the log, and the history is the log's fold."""
        problems = await self.next_turns(turns)
        return problems + await self.check_log()

    async def next_turns(self, count: int = 3, patience: float = BOUND) -> list[str]:
        """Each of the next turns is accepted and answers its own prompt, completely and with nothing else."""
        problems: list[str] = []
        for n in range(count):
            turn = await self.turn(["text", 2, 0])
            deadline = time.monotonic() + patience
            while turn.status == 409 and not n and time.monotonic() < deadline:
                # The end of the run before may still be in progress.
                await asyncio.sleep(0.1)
                turn = await self.turn(["text", 2, 0])
            if turn.status != 200 or turn.broken:
                problems.append(f"turn {n + 1} after the fault: {turn.status} {turn.broken} {turn.body}")
                continue
            problems += [f"turn {n + 1} after the fault: {text}" for text in oracles.answers_only(turn.prompt, turn.text, 2)]
            problems += [f"turn {n + 1} after the fault: {text}" for text in oracles.ends_once(turn.frames)]
            if turn.stop and turn.stop["stopReason"] != "end_turn":
                problems.append(f"turn {n + 1} after the fault ended with {turn.stop}")
        return problems

    async def check_log(self) -> list[str]:
        """What was seen is in the log, or in a gap if it may be lost; ids increase, and the history is the log's fold."""
        replayed = await self.replay()
        history = (await self.session())["history"]["full"]
        problems = oracles.seen_in_log(self.seen, replayed, gaps=self.may_lose) + oracles.numbers_increase(replayed)
        return problems + oracles.history_is_log(history, await self.replay("message"))


@asynccontextmanager
async def closing(daemon: Daemon) -> AsyncIterator[Daemon]:
    """End the daemon and all that its agents left, whatever happens."""
    try:
        yield daemon
    finally:
        if daemon.running:
            await daemon.kill()
        daemon.end_left()
