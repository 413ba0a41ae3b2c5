"""Gateway: the shared services, sessions and tasks that the protocols work with, opened and closed in order."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drivers.contract.agent_specs import Limits
from drivers.runtime.clock import SYSTEM_CLOCK, Clock
from drivers.runtime.launchers import end_removals
from drivers.runtime.process import Spawner
from drivers.runtime.temporary_folder import remove_left_behind
from gateway.agents.agent_descriptions import AgentDescription, describe
from gateway.agents.configured_agents import Agents
from gateway.agents.discovery import Discovery
from gateway.application_tools.host import McpHost
from gateway.config import Settings
from gateway.conversations.conversations import Conversations
from gateway.errors import SessionElsewhere, WrongKey
from gateway.http.doubt_limit import UnansweredRequests
from gateway.http.file_descriptors import agent_connection_limit
from gateway.observability.audit import AuditLog
from gateway.observability.health import DRAINED, ReadinessCheck
from gateway.observability.metrics import Metrics, MetricsSnapshot
from gateway.observability.transcripts import Transcripts
from gateway.private_files import TEMPORARY, folders_of_sessions, private_data_directory, private_directory
from gateway.runs.admission_and_eviction import AdmissionControl
from gateway.runs.cancellation import all_ended
from gateway.runs.idempotency import Idempotency
from gateway.runs.one_shot_tasks import TaskRunner, remove_task_folders
from gateway.runs.recovery import close_open_runs, end_left_behind, remove_of_launchers
from gateway.runs.retention import Retention
from gateway.runs.run import RunState
from gateway.runs.shared_services import SharedServices
from gateway.security.authentication import (
    FORWARDED_CALLER,
    Authenticator,
    Authorization,
    Caller,
    caller_of_request,
    current_key_name,
)
from gateway.security.credentials import Credentials
from gateway.security.encryption import SecretEncryption, encryption_key
from gateway.security.quotas import KeyQuotas, UnauthenticatedBodies
from gateway.security.redaction import Redactor
from gateway.security.secret_files import read_or_create
from gateway.security.wrong_keys import WrongKeys
from gateway.sessions.registry import Sessions
from gateway.sessions.search import SessionSearch
from gateway.store import Store
from gateway.store.sqlite import sqlite_url
from gateway.store.times import STORE_TIMES, StoreTimes
from gateway.store.urls import url_secrets
from gateway.worktrees.worktrees import Worktrees

if TYPE_CHECKING:
    from gateway.cluster.cluster import Cluster
    from gateway.cluster.node import Intervals, Node
    from gateway.cluster.node_keys import NodeKeys

log = logging.getLogger(__name__)

SHUT_DOWN = "the gateway was shut down in the middle of this run; send the message again when it is back"
INSTANCE_ID = "instance-id"
"""The file of the data directory with its id."""
STORE_TIMEOUT = 1.0
"""Seconds after `limits.grace` at which a shutdown abandons a store that does not answer."""
CLOSE_TIMEOUT = 0.3
"""Seconds that the end of connections may take once all runs have ended, and then the last writes."""
END_TIMEOUT = 1.4
"""Seconds after `limits.grace` at which a shutdown goes on without the agents that cannot be ended."""


class Gateway:
    """The daemon without its HTTP server: its parts, opened and closed in order.

    Await `open` before the first request, and `close` after or during the last one. `clock` is the clock of all time limits.
    `intervals` and `node_clock` are for a node of a cluster, and `store_times` are the limits of time of the store.
    """

    store: Store
    idempotency: Idempotency
    sessions: Sessions
    search: SessionSearch
    conversations: Conversations
    tasks: TaskRunner
    worktrees: Worktrees

    def __init__(
        self,
        settings: Settings,
        keys: tuple[str, ...],
        redactor: Redactor,
        agents: Agents | None = None,
        discovery: Discovery | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        intervals: Intervals | None = None,
        node_clock: Clock = SYSTEM_CLOCK,
        store_times: StoreTimes = STORE_TIMES,
    ) -> None:
        self.clock, self.store_times = clock, store_times
        self.settings, self.redactor = settings, redactor
        self.cluster: Cluster | None = None
        """What this daemon has as one of a cluster; None without [node]."""
        if settings.node.address:
            from gateway.cluster.cluster import Cluster  # 0.4 MB and 5 ms, for nodes only

            self.cluster = Cluster(self, keys, intervals, node_clock)
        self.credentials = Credentials(clock)
        self.wrong_keys = WrongKeys(clock)
        self.auth = Authenticator(keys, self.credentials, share_sessions=settings.auth.share_sessions)
        self.agents = agents or Agents(settings)
        self.discovery = discovery or Discovery(self.agents, settings.data_dir, redactor, clock=clock)
        self.keep_alive = settings.server.keep_alive
        redactor.register(keys)
        for agent in self.agents:
            redactor.register(agent.secrets)
        self.metrics = Metrics()
        self.quotas = KeyQuotas(settings.limits)
        self.node_keys: NodeKeys | None = None
        """With what the nodes of a cluster sign their requests to each other; None for a gateway that is no node."""
        self.unauthenticated_bodies = UnauthenticatedBodies()
        self.unanswered = UnansweredRequests(clock, lambda: self.store.in_doubt)
        self.close_last: list[Callable[[], Awaitable[None]]] = []
        self.node: Node | None = None
        """What this daemon does as one of a cluster; None without [node]."""
        self.on_node_lost: list[Callable[[str], None]] = []
        """Called with the id of a node that has lost its sessions: what waits for it ends."""
        self.on_end_for_good: list[Callable[[], None]] = []
        """Called where this program may not use the store any more (`end_for_good`): the daemon is to end."""
        self.ended_for_good = False
        """Whether that is so."""
        self._opened = self._closing = self._closed = False
        self._stopping: asyncio.Task[None] | None = None
        self._removal: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the store, end the processes and runs that a killed daemon left, and be ready for requests. Idempotent.

        Raises ConfigError if the data directory or the store cannot be used.
        """
        if self._opened:
            return
        settings, data_dir = self.settings, self.settings.data_dir
        corrected = private_data_directory(data_dir)
        self.redactor.register(url_secrets(settings.store.url))
        # Another database than that of the data directory may be a new one.
        in_use = () if settings.store.url else folders_of_sessions(data_dir)
        if self.cluster is not None:
            self.store = await self.cluster.open_store(settings.store.url, _instance(data_dir), data_dir / INSTANCE_ID)
        else:
            self.store = await Store.open_alone(settings.store.url or sqlite_url(data_dir), in_use, self.store_times)
        self.store.on_doubt(self.unanswered.doubt_began)
        try:
            with self.store.explained_errors():
                await self._open(settings, data_dir)
        except BaseException:
            await self._end_removals()
            if self.cluster is not None:
                await self.cluster.close(self._in_time)
            await self.store.close()
            raise
        for change in corrected:
            log.warning("%s", change)
        self._retention.start()
        if self.node is not None:
            self.node.repeat()
        else:
            self.sessions.begin_queued_soon()
        self._opened = True

    async def _open(self, settings: Settings, data_dir: Path) -> None:
        self._readiness = ReadinessCheck(self.store, {data_dir, self.store.folder or data_dir}, self.clock)
        instance = _instance(data_dir)
        encryption = SecretEncryption(data_dir, encryption_key(settings))
        await self.credentials.open(self.store.credentials)
        if self.cluster is not None:
            self.node, self.node_keys = await self.cluster.open(self.store, instance, encryption), self.cluster.keys
        node = self.node.id if self.node is not None else None
        left = await end_left_behind(self.store, instance=node)
        if left or settings.container_runtimes:
            removing = remove_of_launchers(self.store, instance, left, settings.container_runtimes)
            self._removal = asyncio.create_task(removing)
        closed = await (self.node.start() if self.node is not None else self.close_runs(self.store))
        if closed:
            log.warning("%d runs were under way when the gateway was stopped; they ended with an error", closed)
        transcripts = Transcripts(data_dir / "transcripts", self.redactor)
        self.idempotency = Idempotency(self.store)
        temporary = data_dir / TEMPORARY
        await asyncio.to_thread(private_directory, temporary)
        await asyncio.to_thread(remove_left_behind, temporary)
        spawner = Spawner(instance, self.store.processes, temporary=temporary, clock=self.clock)
        chosen = settings.limits
        limits = Limits(chosen.start, chosen.idle, chosen.total, chosen.grace)
        states = data_dir / "state"
        # The drivers, which create the folders in it, give a mode to those only.
        await asyncio.to_thread(private_directory, states)
        await asyncio.to_thread(remove_task_folders, states)
        self.worktrees = Worktrees(self.store, data_dir, settings.secret_paths, self.agents.confined_writer, node, self.clock)
        await self.worktrees.start_recovery()
        self._mcp = McpHost(self.redactor, agent_connection_limit(chosen.live_agents), self.clock)
        shared = SharedServices(
            self.store,
            encryption,
            self.redactor,
            spawner,
            limits,
            states,
            self.metrics,
            self._mcp.open,
            AuditLog(self.redactor),
            transcripts,
            self.discovery.notice_replacement,
            self.discovery.check_supported,
            self.worktrees,
            chosen.answer,
            settings.store.durability == "stored-first",
            self.clock,
        )
        admission = AdmissionControl(chosen, self.cluster.turns if self.cluster is not None else None)
        if self.cluster is not None:
            self.sessions, self.tasks = self.cluster.serve(shared, admission, self.idempotency)
        else:
            self.sessions = Sessions(self.agents, shared, admission, chosen.sleep_after)
            self.tasks = TaskRunner(self.agents, shared, admission, self.idempotency)
        self._retention = Retention(self.store, transcripts, settings.store, self.sessions.delete_unused, self.clock)
        self.search = SessionSearch(self.store)
        self.conversations = Conversations(self.agents, self.sessions, settings.openai.tools)
        self.close_last.append(self.conversations.close)
        self.discovery.spawner = spawner
        self.discovery.start()
        if self.cluster is not None:
            await self.cluster.publish_agents()

    async def offered_agents(self) -> list[AgentDescription]:
        """Return the agents that can be used now. On a node of a cluster, agents that only other nodes offer come last."""
        found = [describe(one) for one in await self.discovery.available()]
        if self.cluster is None:
            return found
        return [*found, *await self.cluster.offered_elsewhere({one.name for one in found})]

    async def close_runs(self, store: Store, log_id: str | None = None) -> int:
        """End the runs that were at work when their daemon ended: all runs, or the runs of one log. Return their number."""
        return await close_open_runs(store, self._seeds, log_id)

    def end_for_good(self) -> None:
        """End, because another daemon has the id of this node."""
        # It must write nothing more: the other one has taken over what it had.
        self.ended_for_good = True
        self.store.abandon()
        for end in self.on_end_for_good:
            end()

    @property
    def load(self) -> tuple[int, int]:
        """How many agents live and how many turns run; none before the gateway is open."""
        return (self._live_agents, self._running_turns) if hasattr(self, "tasks") else (0, 0)

    @property
    def _live_agents(self) -> int:
        return sum(session.live is not None for session in self.sessions.held) + len(self.tasks.running)

    @property
    def _running_turns(self) -> int:
        running = (run.state is RunState.RUNNING for run in self.tasks.running)
        return sum(session.busy for session in self.sessions.held) + sum(running)

    @property
    def is_node(self) -> bool:
        """Whether this daemon is one of a cluster."""
        return bool(self.settings.node.address) or self.node_keys is not None

    def node_lost(self, node_id: str) -> None:
        """End what waits for another node, which has lost its sessions: it has ended, or was frozen for too long."""
        for lost in self.on_node_lost:
            lost(node_id)

    def _seeds(self, name: str) -> bool:
        agent = self.agents.find(name)
        return agent is not None and agent.info.capabilities.seeds

    async def authenticated(self, scope: Mapping[str, Any], authorization: Authorization, token: str | None = None) -> Caller:
        """As `known_caller`, and counts a wrong key. Raises TooMany if the client has sent too many of them."""
        with self.wrong_keys_counted(scope):
            return await self.known_caller(scope, authorization, token)

    @contextmanager
    def wrong_keys_counted(self, scope: Mapping[str, Any]) -> Iterator[None]:
        """Count a WrongKey of the body for the client of a request (its ASGI scope). Raises TooMany in its place above the limit.

        A right key is never refused, also from an address that has sent wrong keys.
        """
        try:
            yield
        except WrongKey:
            client = scope.get("client")
            self.wrong_keys.count(client[0] if client else "")
            raise

    async def known_caller(self, scope: Mapping[str, Any], authorization: Authorization, token: str | None = None) -> Caller:
        """Return the caller of a request (its ASGI scope), by its authorization or a token. Raises Unauthorized.

        The caller of a forwarded request is the caller that the other node has authenticated.
        """
        forwarded: Caller | None = scope.get(FORWARDED_CALLER)
        if forwarded is not None:
            current_key_name.set(forwarded.name)
            return forwarded
        return caller_of_request(await self.auth.check(authorization, token), scope, self.settings.server.host)

    def agent_elsewhere(self, name: str, without: Collection[str] = ()) -> SessionElsewhere | None:
        """The error that forwards a request for an agent to a node that offers it; None if this one has it, or none does.

        The nodes of `without` are left out. Raises NoNode.
        """
        if self.node is None or self.agents.find(name) is not None:
            return None
        return self.node.directory.offered_elsewhere(name, without)

    async def problems(self) -> list[str]:
        """Why requests cannot be served at this moment; empty if they can."""
        if self._closing:
            return ["the gateway is shutting down"]
        drained = DRAINED if self.node is not None and self.node.directory.draining else None
        problems = [self.store.problem, await self._readiness.problem(), drained]
        return [problem for problem in problems if problem]

    async def metrics_snapshot(self) -> MetricsSnapshot:
        """The live agents, runs and unwritten events at this moment."""
        held, running = self.sessions.held, self.tasks.running
        return MetricsSnapshot(
            live_agents=sum(session.live is not None for session in held),
            running_turns=sum(session.busy for session in held) + sum(run.state is RunState.RUNNING for run in running),
            waiting_sessions=await self.store.runs.count_waiting(),
            unwritten_bytes=sum(log.unwritten for log in [*(s.log for s in held), *(run.log for run in running)]),
        )

    async def stop_runs(self) -> None:
        """End every run with an error that its readers get, and every agent, within `limits.grace` + 2 s. Raises nothing.

        From then on a store that does not answer is abandoned: what is not stored by then is recovered at the next start.
        """
        if self._stopping is None:
            self._closing = True
            self._stopping = asyncio.create_task(self._stop_runs())
        await asyncio.shield(self._stopping)

    async def _stop_runs(self) -> None:
        grace = self.settings.limits.grace
        abandoning = self.clock.call_later(grace + STORE_TIMEOUT, self.store.abandon)
        works = [self.sessions.close(SHUT_DOWN), self.tasks.close(SHUT_DOWN), self.discovery.close()]
        works.append(self.worktrees.end_changes(grace))
        ended = asyncio.create_task(all_ended(works))
        await self.clock.wait([ended], grace + END_TIMEOUT)
        if not ended.done():
            log.error("the shutdown goes on without runs or agents that did not end within %g s", grace + END_TIMEOUT)
            self.sessions.end_unstored(SHUT_DOWN)
            self.tasks.end_unstored(SHUT_DOWN)
        abandoning.cancel()
        # Streams that outlive a run end last, so that their readers get the ends of the runs.
        closing = asyncio.create_task(all_ended(close() for close in self.close_last))
        await self.clock.wait([closing], CLOSE_TIMEOUT)

    async def _in_time(self, closing: Awaitable[None]) -> None:
        """Await the end of connections. Raises TimeoutError after CLOSE_TIMEOUT."""
        async with self.clock.timeout(CLOSE_TIMEOUT):
            await closing

    async def _end_removals(self) -> None:
        """End the removals of what launchers left behind; the next start tries again."""
        if self._removal is not None:
            self._removal.cancel()
            await asyncio.wait([self._removal])
        await end_removals()

    async def close(self) -> None:
        """Stop what still runs and close the store. Idempotent; raises nothing."""
        if not self._closed:
            self._closed = True
            await self.stop_runs()
            await self._end_removals()
            await all_ended([self._mcp.close(), self._retention.close(), self.worktrees.close()])
            if self.cluster is not None:
                await self.cluster.close(self._in_time)
            await all_ended([self._in_time(self.credentials.close())])
            abandoning = self.clock.call_later(CLOSE_TIMEOUT, self.store.abandon)
            await all_ended([self.store.close()])
            abandoning.cancel()


def _instance(data_dir: Path) -> str:
    """The id of this data directory, which marks the processes started for it."""
    return read_or_create(data_dir / INSTANCE_ID, lambda: uuid.uuid4().hex)
