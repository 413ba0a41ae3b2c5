"""Portico for the tests of your UI: the fixture `portico` starts the gateway with agents that need no model.

It needs the command `portico` and HTTP, and no other package of Portico: yours may have the same names. docs/testing-your-ui.md
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import httpx

SECONDS = 60.0
"""Limit of the start, of the end, and of the time between two bytes of a response: a stream has a comment every 15 seconds."""
DEFAULT_SETTINGS: dict[str, Any] = {"server": {"discover_agents": False}, "agents": {"demo": {"driver": "script"}}}


class PorticoError(Exception):
    """Portico did not start, refused a request (`status`), or its response has ended too early."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Event:
    """An event of a stream: its `id`, its `name` (`text_delta`, `tool_call`, …) and its `data`."""

    id: str
    name: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A tool call: its `id`, the `name` of the tool, and the `input`."""

    id: str
    name: str
    input: dict[str, Any] = field(hash=False)


class Turn:
    """An answer of an agent. Iterating yields its events as they arrive; the other attributes wait for the end of the turn."""

    def __init__(self, arriving: Iterator[Event]) -> None:
        self._arriving = arriving
        self._arrived: list[Event] = []

    def __iter__(self) -> Iterator[Event]:
        position = 0
        while position < len(self._arrived) or self._receive():
            yield self._arrived[position]
            position += 1

    def _receive(self) -> bool:
        if (event := next(self._arriving, None)) is not None:
            self._arrived.append(event)
        return event is not None

    @property
    def events(self) -> list[Event]:
        """All events of the turn."""
        return [*self]

    @property
    def text(self) -> str:
        """The text of the answer."""
        return "".join(event.data["delta"] for event in self if event.name == "text_delta")

    @property
    def thinking(self) -> str:
        """The text of the reasoning."""
        return "".join(event.data["delta"] for event in self if event.name == "thinking_delta")

    @property
    def calls(self) -> list[Call]:
        """The calls without a result: those that wait for you, if the stop reason is `tool_use`."""
        ended = {event.data["toolCallId"] for event in self if event.name == "tool_result"}
        begun = [event.data for event in self if event.name == "tool_call" and event.data["toolCallId"] not in ended]
        return [Call(data["toolCallId"], data["name"], data["input"]) for data in begun]

    @property
    def stop_reason(self) -> str:
        """Why the turn has stopped: `end_turn`, `tool_use`, `max_tokens`, `refusal` or `error`."""
        return str(self._end()["stopReason"])

    @property
    def error(self) -> str | None:
        """Why the turn has failed; None if it has not."""
        error = self._end().get("x-portico", {}).get("error")
        return None if error is None else str(error)

    def _end(self) -> dict[str, Any]:
        for event in self:
            if event.name == "turn_stop":
                return event.data
        raise PorticoError("the stream ended before the turn did: the gateway was stopped, or the session was deleted")


class Session:
    """A session of an agent, by AAP version 3: `id` is its id."""

    def __init__(self, portico: Portico, session_id: str) -> None:
        self.id = session_id
        self._portico = portico
        self._path = f"/aap/v3/sessions/{session_id}"

    def send(self, content: str | Sequence[Mapping[str, Any]], **fields: Any) -> Turn:
        """Send a user message: a text, or blocks. `fields` are further fields of the request, such as `when_busy`.

        Returns the answer when it begins. Raises PorticoError if the message is refused.
        """
        return self._turn([{"role": "user", "content": content}], fields)

    def grant(self, call: Call) -> Turn:
        """Let the only waiting call run, and return the rest of the answer."""
        return self.reply(grant=[call])

    def deny(self, call: Call, reason: str | None = None) -> Turn:
        """Refuse the only waiting call, and return the rest of the answer."""
        return self.reply(deny=[call], reason=reason)

    def answer(self, call: Call, result: str) -> Turn:
        """Give the only waiting call its result: that of your tool, or the user's answer to a question."""
        return self.reply(results={call: result})

    def reply(
        self,
        grant: Sequence[Call] = (),
        deny: Sequence[Call] = (),
        results: Mapping[Call, str] | None = None,
        reason: str | None = None,
    ) -> Turn:
        """Answer several calls that wait. `reason` is why those of `deny` are refused."""
        messages = [{"role": "tool_permission", "toolCallId": call.id, "granted": True} for call in grant]
        why = {} if reason is None else {"reason": reason}
        messages += [{"role": "tool_permission", "toolCallId": call.id, "granted": False, **why} for call in deny]
        messages += [{"role": "tool", "toolCallId": call.id, "content": text} for call, text in (results or {}).items()]
        return self._turn(messages, {})

    def cancel(self) -> bool:
        """Cancel what the agent does, and return whether it did anything."""
        return bool(self._portico.request("POST", f"{self._path}/cancel")["cancelled"])

    def events(self, after: int | str = 0) -> list[Event]:
        """Return all events behind the one with that id, as another window of a UI gets them, until the turn stops."""
        return [*self._portico.stream("GET", f"{self._path}/events?after={after}&until=turn_stop")]

    def history(self) -> list[dict[str, Any]]:
        """Return the messages of the session."""
        return list(self._portico.request("GET", f"{self._path}/history?type=full")["history"]["full"])

    def info(self) -> dict[str, Any]:
        """Return the settings of the session, and in `x-portico` its state."""
        return self._portico.request("GET", self._path)

    def _turn(self, messages: list[dict[str, Any]], fields: Mapping[str, Any]) -> Turn:
        body = {"stream": "delta", "messages": messages, **fields}
        return Turn(self._portico.stream("POST", f"{self._path}/turns", body))


class Execution:
    """The events of a task, by `/v1/execute`. Iterating yields them as they arrive; the attributes wait for the end."""

    def __init__(self, arriving: Iterator[Event]) -> None:
        self._turn = Turn(arriving)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (event.data for event in self._turn)

    @property
    def text(self) -> str:
        """The text of the answer."""
        return "".join(event["text"] for event in self if event["kind"] == "agent_token")

    @property
    def error(self) -> str | None:
        """Why the task has failed; None if it has not."""
        return next((str(event["message"]) for event in self if event["kind"] == "error"), None)

    @property
    def exit_code(self) -> int:
        """The exit code of the agent."""
        for event in self:
            if event["kind"] == "session_end":
                return int(event["exit_code"])
        raise PorticoError("the stream ended before the task did: the gateway was stopped")


class Portico:
    """A running gateway: its `url`, its `key`, and the `folder` of its data. `client` sends requests with the key to the URL."""

    def __init__(self, url: str, key: str, folder: Path, client: httpx.Client) -> None:
        self.url, self.key, self.folder, self.client = url, key, folder, client
        self._scenarios = 0

    def session(
        self,
        agent: str = "demo",
        *,
        scenario: str | Path | Mapping[str, Any] | None = None,
        ask: Sequence[str] = (),
        trust: Sequence[str] = (),
        tools: Sequence[str | Mapping[str, Any]] = (),
        options: Mapping[str, str] | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
    ) -> Session:
        """Create a session of an agent.

        `scenario` is a scenario file, or its content, for an agent of the driver `script` that has no `cwd`. `ask` and `trust`
        are the agent's own tools that it may use: it asks before those of `ask`. `tools` are those of your application: their
        names, or objects with `name`, `description` and `parameters`. `messages` are the history. Raises PorticoError.
        """
        given = dict(options or {})
        if scenario is not None:
            given |= self._placed(scenario)
        own = [{"name": name, "trust": False} for name in ask] + [{"name": name, "trust": True} for name in trust]
        described = [
            {"name": tool, "description": tool, "parameters": {"type": "object"}} if isinstance(tool, str) else dict(tool)
            for tool in tools
        ]
        body = {"agent": {"name": agent, "tools": own, "options": given}, "tools": described, "messages": [*messages]}
        return Session(self, self.request("POST", "/aap/v3/sessions", body)["sessionId"])

    def execute(self, agent: str, task: str, **fields: Any) -> Execution:
        """Run one task and return its events. `fields` are further fields of the request. Raises PorticoError."""
        return Execution(self.stream("POST", "/v1/execute", {"driver": agent, "task": task, **fields}))

    @property
    def log(self) -> str:
        """What the gateway has logged."""
        return (self.folder / "portico.log").read_text("utf-8", "replace")

    def request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a request, and return its JSON response. Raises PorticoError with the gateway's text if it is refused."""
        response = self.client.request(method, path, json=body)
        _check(response)
        return dict(response.json())

    def stream(self, method: str, path: str, body: Any = None) -> Iterator[Event]:
        """Send a request, and return the events of its response, which arrive later. Raises PorticoError if it is refused."""
        events = self._events(method, path, body)
        first = next(events, None)
        return events if first is None else chain([first], events)

    def _events(self, method: str, path: str, body: Any) -> Iterator[Event]:
        # As in `running`.
        from httpx_sse import connect_sse

        with connect_sse(self.client, method, path, json=body) as source:
            if source.response.is_error:
                source.response.read()
            _check(source.response)
            for event in source.iter_sse():
                yield Event(event.id, event.event, json.loads(event.data))

    def _placed(self, scenario: str | Path | Mapping[str, Any]) -> dict[str, str]:
        """Write a scenario into a working folder, and return the options with both."""
        text = json.dumps(scenario) if isinstance(scenario, Mapping) else Path(scenario).read_text("utf-8-sig")
        folder = self.folder / "work"
        folder.mkdir(exist_ok=True)
        self._scenarios += 1
        name = f"scenario-{self._scenarios}.json"
        (folder / name).write_text(text, "utf-8")
        return {"cwd": str(folder), "scenario": name}


@contextmanager
def running(folder: Path, settings: Mapping[str, Any] = DEFAULT_SETTINGS) -> Iterator[Portico]:
    """Start the gateway on a free port, with its data in an empty folder, and end it at the end of the block.

    `settings` are those of its configuration file: tables of keys. Raises PorticoError if it does not start.
    """
    # The plugin is loaded by each run of pytest in an environment with Portico, which may lack them.
    import httpx

    near = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
    program = shutil.which("portico", path=os.pathsep.join(near))
    if program is None:
        raise PorticoError("the command `portico` is not on PATH: install Portico, in this environment or in one of its own")
    key = secrets.token_urlsafe(24)
    # An empty file, so that the user's is not read.
    (folder / "portico.toml").touch()
    command = [program, "serve", "--config", str(folder / "portico.toml"), "--host", "127.0.0.1", "--port", "0"]
    with (folder / "portico.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=_environment(folder, key, settings)
        )
        try:
            url = _listening(process.stdout, folder / "portico.log")
            headers = {"Authorization": f"Bearer {key}"}
            # Not by a proxy of the environment.
            with httpx.Client(base_url=url, headers=headers, timeout=SECONDS, trust_env=False) as client:
                yield Portico(url, key, folder, client)
        finally:
            process.terminate()
            try:
                process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


@pytest.fixture
def portico_settings() -> dict[str, Any]:
    """The settings of the gateway of the fixture `portico`: override it for other agents."""
    return deepcopy(DEFAULT_SETTINGS)


@pytest.fixture
def portico(portico_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portico]:
    """A gateway of the test's own, with the agents `echo` and `demo`, which plays scenarios."""
    with running(tmp_path_factory.mktemp("portico"), portico_settings) as started:
        yield started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the gateway's log to the report of a test that has failed."""
    report = yield
    for value in getattr(item, "funcargs", {}).values():
        if report.failed and isinstance(value, Portico):
            report.sections.append(("log of the gateway", value.log))
    return report


def _environment(folder: Path, key: str, settings: Mapping[str, Any]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PORTICO_")}
    given: dict[str, Any] = {"PORTICO_API_KEY": key, "PORTICO_DATA_DIR": str(folder / "data")}
    for section, table in settings.items():
        keys = {f"PORTICO_{section}__{name}".upper(): value for name, value in table.items()}
        given |= {"PORTICO_AGENTS": table} if section == "agents" else keys
    return kept | {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}


def _listening(output: IO[bytes] | None, log: Path) -> str:
    """Return the URL of the line that the gateway prints once it listens. Raises PorticoError."""
    assert output is not None
    ready, _, _ = select.select([output], [], [], SECONDS)
    line = output.readline().decode() if ready else ""
    if not line.startswith("portico listening on "):
        raise PorticoError(f"the gateway did not start:\n{log.read_text('utf-8', 'replace')}")
    return line.split()[-1]


def _check(response: httpx.Response) -> None:
    if response.is_error:
        raise PorticoError(f"{response.status_code}: {response.text}", response.status_code)
