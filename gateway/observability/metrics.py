"""The metrics of `/metrics`, in one registry per gateway. Events of runs are counted in batches."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from drivers.contract.agent import Agent
from drivers.contract.agent_specs import AgentSpec, SessionSpec
from drivers.contract.events import Awaiting, Event, NativeSession, OutputEvent, SessionEnd, Usage
from gateway.observability.instruments import Distribution, Family, Number

if TYPE_CHECKING:
    from gateway.observability.prometheus_registry import Registry

TIMED_OUT = 124
FIRST_EVENT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)
TURN = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 7200)
TOKENS = {"input": "input_tokens", "output": "output_tokens", "cache_read": "cache_read", "cache_write": "cache_write"}


@dataclass(frozen=True)
class MetricsSnapshot:
    """Values that are read from the gateway when `/metrics` is requested."""

    live_agents: int
    running_turns: int
    waiting_sessions: int
    unwritten_bytes: int


class Metrics:
    """All metrics of one gateway."""

    def __init__(self) -> None:
        self._families: list[Family[Number] | Family[Distribution]] = []
        self.turns = self._counter("turns", "Turns that are over, by how they stopped.", "agent", "stop_reason")
        self.events = self._counter("events", "Events of agents, by kind.", "agent", "kind")
        self.tokens = self._counter("tokens", "Tokens of models, as the agents report them.", "agent", "kind")
        self.starts = self._counter("agent_starts", "Agents started, by how.", "agent", "how")
        self.restarts = self._counter("agent_restarts", "Agents started for a session that had one before.", "agent")
        self.crashes = self._counter(
            "agent_crashes", "Agents whose process ended by itself in the middle of their work.", "agent"
        )
        self.first_event = self._histogram("first_event_seconds", "From the prompt to the first event.", FIRST_EVENT)
        self.turn_seconds = self._histogram("turn_seconds", "From the request of a turn to its last event.", TURN)
        self.requests = self._counter("http_requests", "Answers to HTTP requests.", "method", "route", "status")
        self.open_streams = self._gauge("open_streams", "Server-sent event streams that are open.")
        self._snapshot_gauges = {
            "live_agents": self._gauge("live_agents", "Agents of sessions that are warm or at work."),
            "running_turns": self._gauge("running_turns", "Runs that are at work, of sessions and of tasks."),
            "waiting_sessions": self._gauge("waiting_sessions", "Sessions that wait for their client."),
            "unwritten_bytes": self._gauge("store_unwritten_bytes", "Bytes of events that are not in the store yet."),
        }
        self._by_agent: dict[str, AgentMetrics] = {}

    def forwarded_requests(self) -> Callable[[str], None]:
        """Return the function that counts a forwarded request by its outcome. Only a node of a cluster has this metric."""
        family = self._counter("forwarded_requests", "Requests that were forwarded to other nodes, by outcome.", "outcome")
        return lambda outcome: family.labels(outcome).inc()

    def for_agent(self, agent: str) -> AgentMetrics:
        """Return the metrics of one agent."""
        return self._by_agent.setdefault(agent, AgentMetrics(self, agent))

    @cached_property
    def registry(self) -> Registry:
        """The metrics for prometheus_client."""
        # 12 ms and 1.3 MB that a gateway without a reader of metrics does not need.
        from gateway.observability.prometheus_registry import Registry

        return Registry(self._families)

    @property
    def exported(self) -> bool:
        """Whether `registry` has been used."""
        return "registry" in vars(self)

    def text(self, snapshot: MetricsSnapshot) -> bytes:
        """Return all metrics in Prometheus' text format."""
        for name, gauge in self._snapshot_gauges.items():
            gauge.set(getattr(snapshot, name))
        return self.registry.text()

    def _counter(self, name: str, text: str, *labels: str) -> Family[Number]:
        family = Family("counter", f"portico_{name}", text, labels, Number)
        self._families.append(family)
        return family

    def _gauge(self, name: str, text: str) -> Number:
        family = Family("gauge", f"portico_{name}", text, (), Number)
        self._families.append(family)
        return family.labels()

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> Family[Distribution]:
        family = Family("histogram", f"portico_{name}", text, ("agent",), lambda: Distribution(bounds))
        self._families.append(family)
        return family


class AgentMetrics:
    """The metrics with the label of one agent. Labelled children are looked up once: the look-up costs more than the count."""

    def __init__(self, metrics: Metrics, agent: str) -> None:
        self._metrics, self._agent = metrics, agent
        self._kinds: dict[type[Event], Callable[[float], None]] = {}
        self.first_event = metrics.first_event.labels(agent)
        self.turn_seconds = metrics.turn_seconds.labels(agent)
        self.crashed = metrics.crashes.labels(agent).inc
        self._restarts = metrics.restarts.labels(agent)
        self._tokens = {field: metrics.tokens.labels(agent, kind) for kind, field in TOKENS.items()}

    def run_metrics(self, *, session: bool) -> RunMetrics:
        """Return the metrics of a run that starts now. `session`: the run belongs to a session, whose agent outlives it."""
        return RunMetrics(self, session=session)

    def started(self, spec: AgentSpec, *, again: bool = False) -> None:
        """Count an agent that has started. `again`: its session had an agent before."""
        how = "task"
        if isinstance(spec, SessionSpec):
            how = "resumed" if spec.seed.resume is not None else "seeded" if spec.seed.history else "new"
        self._metrics.starts.labels(self._agent, how).inc()
        if again:
            self._restarts.inc()

    def failed_to_start(self) -> None:
        self._metrics.starts.labels(self._agent, "failed").inc()

    def turn(self, stop_reason: str) -> None:
        self._metrics.turns.labels(self._agent, stop_reason).inc()

    def events(self, tally: Tally[type[OutputEvent]]) -> None:
        for kind, number in tally.items():
            count = self._kinds.get(kind)
            if count is None:
                name = kind.model_fields["kind"].default
                count = self._kinds[kind] = self._metrics.events.labels(self._agent, name).inc
            count(number)

    def usage(self, usage: Usage) -> None:
        for field, figure in self._tokens.items():
            if number := getattr(usage, field):
                figure.inc(number)


class RunMetrics:
    """Counts the events and turns of one run, with a few look-ups per batch of events."""

    def __init__(self, figures: AgentMetrics, *, session: bool) -> None:
        self._figures, self._session = figures, session
        self.start_turn()

    def start_turn(self) -> None:
        self._in_turn, self._began, self._no_event_yet = True, time.monotonic(), True

    def mark_waiting(self) -> None:
        """Record that the turn is over and the run waits for its client: an end of the run is then not the end of a turn."""
        self._in_turn = False

    def record(self, events: Sequence[OutputEvent]) -> None:
        """Count events of the run."""
        if self._no_event_yet and self._in_turn and type(events[-1]) is not NativeSession:
            self._no_event_yet = False
            self._figures.first_event.observe(time.monotonic() - self._began)
        # Counter counts in C: 40 ns per event.
        tally = Tally(map(type, events))
        self._figures.events(tally)
        if Usage in tally:
            for event in events:
                if isinstance(event, Usage):
                    self._figures.usage(event)

    def end_turn(self, event: Awaiting | SessionEnd, agent: Agent | None, *, stopping: bool) -> None:
        """Count the last event of a turn. `stopping`: the gateway ends the run itself."""
        self.record([event])
        if self._in_turn:
            self._figures.turn_seconds.observe(time.monotonic() - self._began)
            self._figures.turn("tool_use" if isinstance(event, Awaiting) else event.stop_reason)
        self.mark_waiting()
        if isinstance(event, SessionEnd) and not stopping and self._crashed(event, agent):
            self._figures.crashed()

    def crashed_while_suspended(self) -> None:
        """Count an agent that ended while its run waits for the client."""
        self._figures.crashed()

    def _crashed(self, end: SessionEnd, agent: Agent | None) -> bool:
        if end.stop_reason != "error" or end.exit_code == TIMED_OUT:
            return False
        # The process of a task ends with it and reports failure by its exit code, so that only a signal is a crash.
        return agent is not None and not agent.alive if self._session else end.exit_code < 0 or end.exit_code > 128
