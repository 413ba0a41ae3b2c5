"""A client of any ACP agent on standard input and output, which records every frame and accepts extensions of the protocol."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]

TIMEOUT_SECONDS = 60.0
LINE_LIMIT = 64 * 1024 * 1024


class RequestFailed(Exception):
    """A response with an error, which is in `error`."""

    def __init__(self, error: Json) -> None:
        super().__init__(json.dumps(error))
        self.error = error


@dataclass
class StdioAgent:
    """An agent's process. `frames` has every received message with the time (`time.perf_counter`) of its arrival.

    A permission request is answered with the option that `choose` returns for its params, a form (`elicitation/create`) with
    the result that `fill` returns. Other requests get the error -32601.
    """

    process: asyncio.subprocess.Process
    frames: list[tuple[float, Json]] = field(default_factory=list)
    choose: Callable[[Json], str] = lambda params: "allow_once"
    fill: Callable[[Json], Json] = lambda params: {"action": "cancel"}
    _pending: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _last: int = 0

    async def request(self, method: str, params: Json) -> Any:
        """Send a request and return its result. Raises RequestFailed, and TimeoutError after `TIMEOUT_SECONDS`."""
        return await asyncio.wait_for(self.begin(method, params), TIMEOUT_SECONDS)

    def begin(self, method: str, params: Json) -> asyncio.Future[Any]:
        """Send a request; return a future of its result."""
        self._last += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[self._last] = answer
        self._send({"id": self._last, "method": method, "params": params})
        return answer

    def begin_prompt(self, session: str, text: str) -> asyncio.Future[Any]:
        return self.begin("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})

    async def prompt(self, session: str, text: str) -> Json:
        found: Json = await asyncio.wait_for(self.begin_prompt(session, text), TIMEOUT_SECONDS)
        return found

    async def until(self, seen: Callable[[], Any], seconds: float = TIMEOUT_SECONDS) -> Any:
        """Wait until `seen` returns a true value, and return that. It is called after each message."""
        async with asyncio.timeout(seconds):
            while not (found := seen()):
                self._changed.clear()
                await self._changed.wait()
        return found

    def since(self, first: int) -> list[Json]:
        """The messages from this number on."""
        return [frame for _, frame in self.frames[first:]]

    async def read(self) -> None:
        """Read messages until the agent ends."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            frame = json.loads(line)
            self.frames.append((time.perf_counter(), frame))
            if "method" in frame:
                self._serve(frame)
            else:
                self._resolve(frame)
            self._changed.set()
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(EOFError("the agent has ended"))

    def _serve(self, frame: Json) -> None:
        if "id" not in frame:
            return
        if frame["method"] == "session/request_permission":
            result = {"outcome": {"outcome": "selected", "optionId": _option(frame["params"], self.choose(frame["params"]))}}
        elif frame["method"] == "elicitation/create":
            result = self.fill(frame["params"])
        else:
            self._send({"id": frame["id"], "error": {"code": -32601, "message": f"{frame['method']} is not supported"}})
            return
        self._send({"id": frame["id"], "result": result})

    def _resolve(self, frame: Json) -> None:
        answer = self._pending.pop(frame["id"], None)
        if answer is None or answer.done():
            return
        if "error" in frame:
            answer.set_exception(RequestFailed(frame["error"]))
        else:
            answer.set_result(frame.get("result"))

    def _send(self, message: Json) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def _option(params: Json, chosen: str) -> str:
    """The id of the first option whose id, kind or name is `chosen`."""
    for member in ("optionId", "kind", "name"):
        for option in params["options"]:
            if option[member] == chosen:
                return str(option["optionId"])
    raise AssertionError(f"there is no option {chosen!r} in {params['options']}")


@asynccontextmanager
async def agent_on_stdio(command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> AsyncIterator[StdioAgent]:
    """Start an agent, whose standard error is appended to `log`. Its input is closed at the end, when it must end."""
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=LINE_LIMIT,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
    agent = StdioAgent(process)
    reading = asyncio.create_task(agent.read())
    try:
        yield agent
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 15)
        except TimeoutError:
            process.kill()
            await process.wait()
        await reading
