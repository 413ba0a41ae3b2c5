"""Nodes of one cluster in this process, over one PostgreSQL store. Time passes for them only where a test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from drivers.contract.agent import PermissionReply
from drivers.contract.events import AgentToken, Event
from drivers.contract.messages import UserMessage
from gateway.app import Gateway
from gateway.cluster.node import Intervals, Node
from gateway.config import parse
from gateway.events.turn_reader import Turn
from gateway.security.authentication import ADMINISTRATOR, Caller, request_is_forwarded
from gateway.security.redaction import Redactor
from gateway.sessions.session import Session, Submission
from gateway.sessions.settings import SessionSettings
from tests.gateway.nodes.two_nodes import ENCRYPTION_KEY, NODE_KEY
from tests.support import stores
from tests.support.daemon import gateway_config
from tests.support.manual_clock import ManualClock

NEVER = 86400.0
INTERVALS = Intervals(heartbeat=NEVER, retry=NEVER, takeover=2.0)
_starts = count(1)


def own_clock() -> ManualClock:
    """Return a clock for a node. The monotonic clocks of two nodes have nothing to do with each other."""
    return ManualClock(next(_starts) * 1000.0)


@dataclass
class ClusterNode:
    """An open gateway that is a node."""

    gateway: Gateway
    clock: ManualClock

    @property
    def node(self) -> Node:
        assert self.gateway.node is not None
        return self.gateway.node

    @property
    def id(self) -> str:
        return self.node.id

    async def look(self, *seconds: float) -> int:
        """Look for dead nodes after each of these times. Returns how many leases were taken over."""
        taken = 0
        for passed in seconds:
            self.clock.now += passed
            taken += await self.node.takeover.look()
        return taken

    async def tidy(self, seconds: float = 0.0) -> None:
        """Let seconds pass, and release what is unused then."""
        self.clock.now += seconds
        await self.gateway.sessions.release_unused(5.0)

    async def create(self, agent: str = "echo", caller: Caller = ADMINISTRATOR, **options: str) -> Session:
        """Create a session at this node, whatever the loads are."""
        with _forwarded():
            return await self.create_anywhere(agent, caller, **options)

    async def create_anywhere(self, agent: str = "echo", caller: Caller = ADMINISTRATOR, **options: str) -> Session:
        """Create a session, or raise SessionElsewhere."""
        settings = SessionSettings(options=options)
        return await self.gateway.sessions.create(caller, self.gateway.agents.get(agent), settings, [])

    async def get(self, session_id: str, *, reading: bool = False) -> Session:
        """The session, to be changed or to be read."""
        return await self.gateway.sessions.get(ADMINISTRATOR, session_id, reading=reading)

    async def get_forwarded(self, session_id: str) -> Session:
        """The session, for a request that another node has forwarded to this one."""
        with _forwarded():
            return await self.get(session_id)


@contextmanager
def _forwarded() -> Iterator[None]:
    token = request_is_forwarded.set(True)
    try:
        yield
    finally:
        request_is_forwarded.reset(token)


async def begin(session: Session, text: str = "hello") -> Turn:
    """Begin a turn."""
    return await session.submit(Submission(message=UserMessage(content=text)))


async def rest(turn: Turn) -> list[Event]:
    """The events of a turn, up to its end."""
    return [entry.event async for entries in turn.batches() for entry in entries]  # type: ignore[misc]


async def say(session: Session, text: str = "hello") -> list[Event]:
    """A whole turn."""
    return await rest(await begin(session, text))


async def until(turn: Turn, text: str) -> None:
    """Read a turn up to a text, and wait until it is stored: a lease that a write has locked is not taken over."""
    async for entries in turn.batches():
        if any(isinstance(entry.event, AgentToken) and text in entry.event.text for entry in entries):
            assert await turn._log.written()
            return
    raise AssertionError(f"the turn has ended without {text!r}")


async def create_waiting(node: ClusterNode, write_scenario: Callable[..., str]) -> Session:
    """Create a session that waits for the permission of the call `sky`."""
    call = {"id": "sky", "name": "weather", "ask": True, "result": "sun"}
    scenario = write_scenario([{"tool_call": call}, {"text": "over"}], [{"remember": True}], name="waiting.json")
    session = await node.create("script", scenario=scenario)
    await say(session)
    assert session.state == "waiting"
    return session


def permission() -> Submission:
    """The answer to the call `sky`."""
    return Submission(replies=(PermissionReply("sky", "allow"),))


@asynccontextmanager
async def run_node(folder: Path, name: str, intervals: Intervals = INTERVALS, **tables: Any) -> AsyncIterator[ClusterNode]:
    """Run a node with the data directory `name`. All nodes of a folder have one store."""
    encryption, keys = folder / "encryption-key", folder / "node-keys"
    encryption.write_text(ENCRYPTION_KEY)
    keys.write_text(NODE_KEY)
    files = {"encryption_key_file": str(encryption), "key_file": str(keys)}
    chosen = {"address": f"http://{name}:7700", **files, **tables.pop("node", {})}
    config = gateway_config(folder, server={"data_dir": str(folder / name)}, node=chosen, **tables)
    with stores.use("postgresql"):
        config["store"] = {"url": stores.store_url(folder)}
    settings = parse(config)
    clock = own_clock()
    gateway = Gateway(settings, settings.auth.keys, Redactor(), intervals=intervals, node_clock=clock)
    await gateway.open()
    try:
        yield ClusterNode(gateway, clock)
    finally:
        await gateway.close()


@asynccontextmanager
async def run_nodes(folder: Path, *names: str, **tables: Any) -> AsyncIterator[list[ClusterNode]]:
    """Run nodes that know each other."""
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(run_node(folder, name, **dict(tables))) for name in names]
        for node in nodes:
            await node.node.beat()
        yield nodes
