"""PolicyEnforcer: decides a run's tool calls by the rules and by earlier grants, before the client is asked. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from drivers.contract.agent import PermissionReply, Reply
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import AwaitedCall, Awaiting, DeniedResult, Event, OutputEvent, ToolCall, ToolResult
from drivers.contract.messages import ToolUseBlock
from gateway.policy.decision_record import CLI, CLIENT, TIME_LIMIT, Decision, Outcome, denial
from gateway.policy.rules import NO_RULE, Evaluation, Policy, Resolve

RELEVANT: frozenset[type[Event]] = frozenset((ToolCall, ToolResult, DeniedResult, Awaiting))
"""The kinds of events that enforcement reads or changes; batches without them need not pass through it."""
LEFT = Evaluation(None)
"""The ruling about a call that the CLI decides about."""
NOT_CONFINED = "no sandbox confines it to the folders of the session"
"""Why the client is asked about a call that trust or a rule permits."""


@dataclass(slots=True)
class Enforced:
    """The events for the client, and the replies that the agent gets at once."""

    events: list[OutputEvent] = field(default_factory=list)
    replies: list[PermissionReply] = field(default_factory=list)


class EarlierGrants:
    """Calls that the client granted to an agent that has ended. Each grants one call with the same name and input."""

    def __init__(self, calls: Iterable[ToolUseBlock] = ()) -> None:
        self._calls: list[tuple[str, object]] = [(call.name, call.input) for call in calls]

    def take(self, call: ToolUseBlock) -> bool:
        """Use up the grant for a call; False if there is none."""
        made = (call.name, call.input)
        if made not in self._calls:
            return False
        self._calls.remove(made)
        return True


def _nothing(tool: str) -> bool:
    return False


class PolicyEnforcer:
    """The enforcement for one run. `decisions` collects what was decided; the run writes it to the audit and empties the list.

    `left_to_cli`: whether the CLI decides about the calls of a tool that no rule decides and that is not trusted.

    Where all calls of a stop are decided here, the client does not see the stop. Where the client is asked about others, its
    answers and the `held` replies go to the agent together: a denied call has its result at once, an allowed one runs then.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        grants: Iterable[ToolGrant] = (),
        resolve: Resolve | None = None,
        left_to_cli: Callable[[str], bool] = _nothing,
    ) -> None:
        self._policy, self._resolve, self._left_to_cli = policy or Policy(), resolve, left_to_cli
        self._evaluated: dict[str, tuple[ToolUseBlock, Evaluation]] = {}
        self.begin(grants)
        self._calls: dict[str, ToolUseBlock] = {}
        self._reported: set[str] = set()
        self._client_decides: set[str] = set()
        self.decisions: list[Decision] = []

    def begin(self, grants: Iterable[ToolGrant], approved: Iterable[ToolUseBlock] = ()) -> None:
        """An agent begins with the client's grants; `approved` are calls that the client granted to its predecessor."""
        given = tuple(grants)
        self._trust = {grant.name: grant.trust for grant in given}
        self._inline = {grant.name for grant in self._policy.effective_grants(given) if grant.trust}
        self._granted = EarlierGrants(approved)
        self.held: dict[str, PermissionReply] = {}

    def add_calls(self, calls: Mapping[str, ToolUseBlock]) -> None:
        """Add calls that were made before the first event that comes here: of an agent of an earlier gateway.

        Whether the client must decide about them is not known any more, so it does.
        """
        self._calls |= calls
        self._client_decides |= calls.keys()

    def slow_calls(self, events: Iterable[OutputEvent]) -> list[ToolUseBlock]:
        """The calls that `apply` evaluates for these events and that take long, or read the file system.

        Evaluate them by `evaluate`, in a thread, and pass the result to `add_evaluations` before `apply`.
        """
        if not self._policy.rules:
            return []
        calls, found = dict(self._calls), dict[str, ToolUseBlock]()
        for event in events:
            if isinstance(event, ToolCall) and event.status == "started":
                calls[event.id] = _call_block(event)
                if event.name in self._inline:
                    found[event.id] = calls[event.id]
            elif isinstance(event, Awaiting):
                found |= {call.id: calls[call.id] for call in event.calls if not call.optional and call.id in calls}
        return [call for call in found.values() if self._policy.is_slow(call.name, call.input)]

    def evaluate(self, calls: Iterable[ToolUseBlock]) -> list[tuple[ToolUseBlock, Evaluation]]:
        """Evaluate calls. It changes nothing and may run in a thread."""
        return [(call, self._policy.evaluate(call.name, call.input, self._resolve)) for call in calls]

    def add_evaluations(self, evaluated: Iterable[tuple[ToolUseBlock, Evaluation]]) -> None:
        """Use these evaluations for the calls, as long as their input does not change."""
        self._evaluated |= {call.tool_call_id: (call, evaluation) for call, evaluation in evaluated}

    def apply(self, events: Iterable[OutputEvent]) -> Enforced:
        """Decide the calls of these events; the events as the client gets them, and the replies to the agent."""
        enforced, events = Enforced(), tuple(events)
        denied = {event.tool_call_id for event in events if isinstance(event, DeniedResult)}
        for event in events:
            if isinstance(event, ToolCall):
                self._call(event, enforced, decided=event.id in denied)
            elif isinstance(event, DeniedResult):
                self._record(event.tool_call_id, "denied", "default", str(event.output))
                enforced.events.append(event.tool_result())
            elif isinstance(event, ToolResult):
                enforced.events += [event] if event.tool_call_id not in self._reported else []
            elif isinstance(event, Awaiting):
                self._awaiting(event, enforced)
            else:
                enforced.events.append(event)
        return enforced

    def answered(self, replies: Sequence[Reply], by: str) -> None:
        """Record the answers to calls; `by` is `client` or `limits.answer`."""
        for reply in replies:
            outcome: Outcome = "answered"
            reason = None
            if isinstance(reply, PermissionReply):
                outcome, reason = "granted" if reply.allowed else "timed_out" if by == TIME_LIMIT else "refused", reply.reason
            self._record(reply.call_id, outcome, by, reason)

    def release(self, replies: Sequence[Reply]) -> list[PermissionReply]:
        """The held replies that go to the agent besides these. Call it once, when the answers are stored."""
        given = {reply.call_id for reply in replies}
        held, self.held = self.held, {}
        return [reply for call_id, reply in held.items() if call_id not in given]

    def cancelled(self, call_ids: Iterable[str]) -> None:
        """Record that the client has cancelled pending calls."""
        for call_id in call_ids:
            self._record(call_id, "cancelled", CLIENT, None)

    def call(self, call_id: str) -> ToolUseBlock | None:
        """Return a call that has started and not ended; None if there is none of that id."""
        return self._calls.get(call_id)

    def lacks_trust_only(self, call_id: str) -> bool:
        """Whether a call would have run by itself if the client had trusted its tool when the agent began.

        False where a rule asks, where the client must decide, after a restart of the gateway, and where the agent began with the
        trust: an agent that asks all the same needs more than that.
        """
        call = self._calls.get(call_id)
        if call is None or self._trust.get(call.name) or call_id in self._client_decides:
            return False
        return self._evaluation(call).verdict is None

    def _evaluation(self, call: ToolUseBlock) -> Evaluation:
        evaluated = self._evaluated.get(call.tool_call_id)
        if evaluated is not None and evaluated[0] == call:
            return evaluated[1]
        return self._policy.evaluate(call.name, call.input, self._resolve)

    def _call(self, event: ToolCall, enforced: Enforced, *, decided: bool) -> None:
        if event.status != "started":
            self._calls.pop(event.id, None)
            self._evaluated.pop(event.id, None)
            if event.id in self._reported:
                self._reported.discard(event.id)
                return
        else:
            known, call = event.id in self._calls, _call_block(event)
            self._calls[event.id] = call
            if decided:
                enforced.events.append(event)
                return
            if event.name in self._inline:
                by_rule = self._evaluation(call)
                self._record_ruling(event.id, by_rule if by_rule.rule is not None else NO_RULE)
            elif not known and self._left_to_cli(event.name) and not self._policy.restricts_tool(event.name):
                self._record(event.id, "left", CLI, None)
        enforced.events.append(event)

    def _awaiting(self, event: Awaiting, enforced: Enforced) -> None:
        rulings = {call.id: self._ruling(call) for call in event.calls if not call.optional}
        self._client_decides |= {call.id for call in event.calls if call.decided_by == "client"}
        decided = {call_id: reply for call_id, ruling in rulings.items() if (reply := _reply(call_id, ruling)) is not None}
        left = [call.id for call in event.calls if call.decided_by == "cli" and rulings.get(call.id) is LEFT]
        decided |= {call_id: PermissionReply(call_id, "leave") for call_id in left}
        for call_id, ruling in rulings.items():
            self._record_ruling(call_id, ruling)
        if rulings and len(decided) == len(rulings):
            enforced.replies += decided.values()
            return
        self.held |= decided
        remaining: list[AwaitedCall] = []
        for call in event.calls:
            reply = decided.get(call.id)
            if reply is None or reply.allowed:
                remaining.append(call if reply is None else call.model_copy(update={"optional": True}))
            else:
                enforced.events += self._denied(call.id, reply)
        enforced.events.append(event.model_copy(update={"calls": tuple(remaining)}))

    def _ruling(self, awaited: AwaitedCall) -> Evaluation:
        call = self._calls.get(awaited.id)
        if call is None:
            return Evaluation("ask")
        ruling = self._evaluation(call)
        if ruling.verdict == "deny" or awaited.wants != "permission":
            # Unless a rule denies it, an application-side tool is run by the client, and a question answered by the user.
            return ruling if ruling.verdict == "deny" else Evaluation("ask")
        if self._granted.take(call):
            return Evaluation("allow", reason="granted before")
        if ruling.verdict is None and awaited.decided_by == "cli":
            return LEFT
        if ruling.verdict is None:
            # An agent that was to run it at once and asks all the same needs more (codex: a patch outside of its folder).
            ruling = Evaluation("allow" if self._trust.get(call.name) and call.name not in self._inline else "ask")
        if ruling.verdict == "allow" and awaited.decided_by == "client":
            return Evaluation("ask", reason=NOT_CONFINED)
        return ruling

    def _denied(self, call_id: str, reply: PermissionReply) -> list[OutputEvent]:
        """The end of a call whose denial the agent gets later, with all the other answers."""
        self._reported.add(call_id)
        name = self._calls[call_id].name
        result = ToolResult(tool_call_id=call_id, output=denial(reply.reason), is_error=True)
        return [result, ToolCall(id=call_id, name=name, status="failed")]

    def _record_ruling(self, call_id: str, ruling: Evaluation) -> None:
        if ruling is LEFT:
            return self._record(call_id, "left", CLI, None)
        by = "trust" if ruling.rule is None else f"policy[{ruling.rule}]"
        if ruling.verdict == "ask":
            return self._record(call_id, "asked", by if ruling.rule is not None else "default", ruling.reason)
        if ruling.verdict == "deny":
            return self._record(call_id, "denied", by, ruling.reason)
        outcome: Outcome = "trusted" if ruling.rule is None and ruling.reason is None else "allowed"
        self._record(call_id, outcome, CLIENT if ruling.rule is None and ruling.reason else by, ruling.reason)

    def _record(self, call_id: str, outcome: Outcome, by: str, reason: str | None) -> None:
        call = self._calls.get(call_id)
        name, given = (call.name, call.input) if call else ("", None)
        self.decisions.append(Decision(outcome, by, name, call_id, given, reason))


def _reply(call_id: str, ruling: Evaluation) -> PermissionReply | None:
    if ruling.verdict == "allow":
        return PermissionReply(call_id, "allow")
    return PermissionReply(call_id, "deny", reason=ruling.reason) if ruling.verdict == "deny" else None


def _call_block(event: ToolCall) -> ToolUseBlock:
    given = event.input if isinstance(event.input, dict) else {} if event.input is None else {"input": event.input}
    return ToolUseBlock(tool_call_id=event.id, name=event.name, input=given)
