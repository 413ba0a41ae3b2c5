"""Clients of a cluster. Each request goes to any node; connections are dropped at random, and resumed by Last-Event-ID."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.faults.daemon import prompt
from tests.support.sse import NumberedEvent as Frame
from tests.support.sse import StreamParser, numbered

READ_SECONDS = 6.0
"""A client whose connection is silent for so long tries another node."""
RETRY_SECONDS = 0.3
UNVERIFIED_SECONDS = 150.0
"""The clocks of two nodes differ by up to 120 s."""
TRANSIENT = (429, 502, 503)
"""Answers after which a client repeats its request, with the same idempotency key."""


@dataclass
class Traffic:
    """What all clients share. `urls` are those of all nodes. `answers` counts refusals by status and text."""

    http: httpx.AsyncClient
    urls: Callable[[], list[str]]
    slots: asyncio.Semaphore
    over: asyncio.Event = field(default_factory=asyncio.Event)
    answers: Counter[str] = field(default_factory=Counter)
    disconnects: int = 0
    broken: int = 0


@dataclass
class Reader:
    """Reads streams of one session and keeps their frames, in order."""

    traffic: Traffic
    rng: random.Random
    seen: list[Frame] = field(default_factory=list)
    session: str = ""

    async def read(self, method: str, path: str, **request: Any) -> int:
        """Read from any node: up to the end, a random size, or the loss of the connection. Return the status, 0 for none."""
        traffic, rng = self.traffic, self.rng
        enough = rng.choice((rng.randint(1, 4000), rng.randint(1, 30_000), 10**9))
        parser, size = StreamParser(), 0
        try:
            async with traffic.http.stream(method, rng.choice(traffic.urls()) + path, **request) as answer:
                if answer.status_code != 200:
                    text = (await answer.aread()).decode()[:160]
                    traffic.answers[f"{answer.status_code} {text.replace(self.session or ' ', 'ID')}"] += 1
                    await asyncio.sleep(RETRY_SECONDS * rng.uniform(0.5, 2.0))
                    return answer.status_code
                async for chunk in answer.aiter_raw():
                    self.seen += parser.feed(chunk)
                    size += len(chunk)
                    if size >= enough:
                        traffic.disconnects += 1
                        break
                return 200
        except httpx.TransportError:
            traffic.broken += 1
            await asyncio.sleep(RETRY_SECONDS)
            return 0

    async def follow(self, **query: str) -> int:
        """Follow the session from the last frame that was seen."""
        after = {"Last-Event-ID": self.seen[-1][0] if self.seen else "0"}
        return await self.read("GET", f"/session/{self.session}/events", params=query, headers=after)


@dataclass
class Talker:
    """The client of one session. `asks`: its prompts contain a call that waits for permission."""

    name: str
    reader: Reader
    asks: bool
    texts: int
    pause: float
    sent: list[str] = field(default_factory=list)
    done: bool = False

    async def run(self, at_least: int) -> None:
        """Create the session and run turns until the traffic is over, at least so many."""
        await self._create()
        while len(self.sent) < at_least or not self.reader.traffic.over.is_set():
            async with self.reader.traffic.slots:
                await self.turn()
            # Another session is next; this one may be released.
            await asyncio.sleep(self.reader.rng.uniform(0.0, self.pause))
        self.done = True

    async def _create(self) -> None:
        traffic, rng = self.reader.traffic, self.reader.rng
        body = {"agent": {"name": "faulty", "tools": [{"name": "act"}]}}
        while not self.reader.session:
            try:
                answer = await traffic.http.post(
                    rng.choice(traffic.urls()) + "/aap/v3/sessions", json=body, headers={"Idempotency-Key": self.name}
                )
                if answer.status_code == 201:
                    self.reader.session = answer.json()["sessionId"]
                    return
                traffic.answers[f"{answer.status_code} {answer.text[:160]}"] += 1
            except httpx.TransportError:
                traffic.broken += 1
            await asyncio.sleep(RETRY_SECONDS)

    async def turn(self) -> None:
        """Run one turn to its end, with an answer to its call."""
        name = f"{self.name}-{len(self.sent) + 1}"
        self.sent.append(name)
        steps: list[list[Any]] = [["text", self.texts, 0.05]]
        if self.asks:
            steps = [["text", 2, 0.05], ["ask"], *steps]
        await self._send(name, [prompt(name, *steps)])
        while self.waits:
            call = next(data["toolCallId"] for _, kind, data in reversed(self.reader.seen) if kind == "tool_call")
            number = sum(kind == "turn_stop" for _, kind, _ in self.reader.seen)
            await self._send(f"{name}-{number}", [{"role": "tool_permission", "toolCallId": call, "granted": True}])

    @property
    def waits(self) -> bool:
        """Whether the last turn waits for an answer."""
        return bool(self.reader.seen) and self.reader.seen[-1][2].get("stopReason") == "tool_use"

    async def _send(self, key: str, messages: list[Any]) -> None:
        before, reader = len(reader_seen := self.reader.seen), self.reader
        body = {"stream": "delta", "messages": messages}
        while not (len(reader_seen) > before and reader_seen[-1][1] == "turn_stop"):
            if len(reader_seen) > before:
                await reader.follow(until="turn_stop")
            else:
                await reader.read("POST", f"/session/{reader.session}", json=body, headers={"Idempotency-Key": key})

    def stops(self) -> list[str]:
        """The reasons with which the turns have stopped."""
        return [data["stopReason"] for _, name, data in self.reader.seen if name == "turn_stop"]


@dataclass
class Follower:
    """A client that only follows the session of another one."""

    talker: Talker
    reader: Reader

    async def run(self) -> None:
        """Follow until the other client is done and everything was seen."""
        while not self.talker.reader.session:
            await asyncio.sleep(0.1)
        self.reader.session = self.talker.reader.session
        while not (self.talker.done and self._number(self.reader) >= self._number(self.talker.reader)):
            await self.reader.follow(**({"until": "turn_stop"} if self.talker.done else {}))

    @staticmethod
    def _number(reader: Reader) -> int:
        return int(reader.seen[-1][0].split(".")[0]) if reader.seen else 0


async def replay(traffic: Traffic, session: str, rng: random.Random) -> list[Frame]:
    """All frames of an idle session, from any node. Raises RuntimeError.

    A node whose clock is ahead refuses what others forward to it after its restart, for as long as their clocks are behind.
    """
    found, deadline = list[Frame](), time.monotonic() + UNVERIFIED_SECONDS
    while True:
        query = {"after": found[-1][0] if found else "0", "until": "turn_stop", "stream": "delta"}
        answer = await traffic.http.get(f"{rng.choice(traffic.urls())}/session/{session}/events", params=query)
        if answer.status_code in (502, 503) and time.monotonic() < deadline:
            await asyncio.sleep(RETRY_SECONDS)
            continue
        if answer.status_code != 200:
            raise RuntimeError(f"GET /session/{session}/events: {answer.status_code} {answer.text}")
        more = numbered(answer.content)
        if not more:
            return found
        found += more


def prompt_of(data: Any) -> str:
    """The id of the prompt of a `client_message`; empty if it has none."""
    content = data.get("content", "")
    text = content if isinstance(content, str) else "".join(block.get("text", "") for block in content)
    return str(json.loads(text)["id"]) if text.startswith("{") else ""
