"""PolicyEnforcer: decides about a run's tool calls before the client is asked, by the rules and by earlier grants. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from drivers.contract.agent import PermissionReply, Reply
from drivers.contract.events import AwaitedCall, Awaiting, Event, OutputEvent, ToolCall, ToolResult
from drivers.contract.info import ToolGrant
from drivers.contract.messages import ToolUseBlock
from gateway.policy.decisions import CLIENT, Decision, Outcome
from gateway.policy.pending_calls import DENIED, Approvals
from gateway.policy.rules import NO_RULE, Evaluation, Policy

MATTER: frozenset[type[Event]] = frozenset((ToolCall, ToolResult, Awaiting))
"""The kinds of events that concern it."""
TIME_LIMIT = "limits.answer"


@dataclass(slots=True)
class Passed:
    """What is left of some events, and what the agent is to be told at once."""

    events: list[OutputEvent] = field(default_factory=list)
    replies: list[PermissionReply] = field(default_factory=list)


class PolicyEnforcer:
    """One run's. `decisions` collects what was decided, for whoever writes it down.

    Where all calls of a stop are decided here, the client does not learn of the stop. Where the client is asked about others, its
    answers and the `held` replies go to the agent together: a denied call has its result at once, an allowed one runs then.
    """

    def __init__(self, policy: Policy | None = None, grants: Iterable[ToolGrant] = ()) -> None:
        self._policy = policy or Policy()
        self.begin(grants)
        self._calls: dict[str, ToolUseBlock] = {}
        self._told: set[str] = set()
        self.decisions: list[Decision] = []

    def begin(self, grants: Iterable[ToolGrant], approved: Iterable[ToolUseBlock] = ()) -> None:
        """An agent begins, with what the client grants; it has `approved` some calls to one that is gone."""
        given = tuple(grants)
        self._trust = {grant.name: grant.trust for grant in given}
        self._inline = {grant.name for grant in self._policy.effective_grants(given) if grant.trust}
        self._approvals = Approvals(approved)
        self.held: dict[str, PermissionReply] = {}

    def know(self, calls: Mapping[str, ToolUseBlock]) -> None:
        """Calls that were made before."""
        self._calls |= calls

    def pass_on(self, events: Iterable[OutputEvent]) -> Passed:
        """The events as the client shall see them."""
        passed = Passed()
        for event in events:
            if isinstance(event, ToolCall):
                self._call(event, passed)
            elif isinstance(event, ToolResult):
                passed.events += [event] if event.tool_call_id not in self._told else []
            elif isinstance(event, Awaiting):
                self._awaiting(event, passed)
            else:
                passed.events.append(event)
        return passed

    def answered(self, replies: Sequence[Reply], by: str) -> None:
        """The client's answers have come (or `by` another's)."""
        for reply in replies:
            outcome: Outcome = "answered"
            reason = None
            if isinstance(reply, PermissionReply):
                outcome, reason = "granted" if reply.granted else "timed_out" if by == TIME_LIMIT else "refused", reply.reason
            self._note(reply.call_id, outcome, by, reason)

    def release(self, replies: Sequence[Reply]) -> list[PermissionReply]:
        """What the agent is to be told besides these; once, when they are stored."""
        given = {reply.call_id for reply in replies}
        held, self.held = self.held, {}
        return [reply for call_id, reply in held.items() if call_id not in given]

    def cancelled(self, call_ids: Iterable[str]) -> None:
        """The client has given up the calls that wait for it."""
        for call_id in call_ids:
            self._note(call_id, "cancelled", CLIENT, None)

    def trust_would_do(self, call_id: str) -> bool:
        """Whether the client is asked about a call for want of trust alone: no rule asks, and the agent has begun without it.

        An agent that has it and asks all the same wants more than what it was trusted with.
        """
        call = self._calls.get(call_id)
        if call is None or self._trust.get(call.name):
            return False
        return self._policy.evaluate(call.name, call.input).verdict is None

    def _call(self, event: ToolCall, passed: Passed) -> None:
        if event.status != "started":
            self._calls.pop(event.id, None)
            if event.id in self._told:
                self._told.discard(event.id)
                return
        else:
            given = event.input if isinstance(event.input, dict) else {} if event.input is None else {"input": event.input}
            self._calls[event.id] = ToolUseBlock(tool_call_id=event.id, name=event.name, input=given)
            if event.name in self._inline:
                by_rule = self._policy.evaluate(event.name, given)
                self._note_ruling(event.id, by_rule if by_rule.rule is not None else NO_RULE)
        passed.events.append(event)

    def _awaiting(self, event: Awaiting, passed: Passed) -> None:
        rulings = {call.id: self._ruling(call) for call in event.calls if not call.optional}
        decided = {call_id: reply for call_id, ruling in rulings.items() if (reply := _reply(call_id, ruling)) is not None}
        for call_id, ruling in rulings.items():
            self._note_ruling(call_id, ruling)
        if rulings and len(decided) == len(rulings):
            passed.replies += decided.values()
            return
        self.held |= decided
        left: list[AwaitedCall] = []
        for call in event.calls:
            reply = decided.get(call.id)
            if reply is None or reply.granted:
                left.append(call if reply is None else call.model_copy(update={"optional": True}))
            else:
                passed.events += self._denied(call.id, reply)
        passed.events.append(event.model_copy(update={"calls": tuple(left)}))

    def _ruling(self, awaited: AwaitedCall) -> Evaluation:
        call = self._calls.get(awaited.id)
        if call is None:
            return Evaluation("ask")
        ruling = self._policy.evaluate(call.name, call.input)
        if ruling.verdict == "deny" or awaited.wants == "result":
            # Whatever else a rule says, an application-side tool is run by the client.
            return ruling if ruling.verdict == "deny" else Evaluation("ask")
        if self._approvals.take(call):
            return Evaluation("allow", reason="granted before")
        if ruling.verdict is None:
            # An agent that was to run it at once and asks all the same wants more (codex: a patch outside of its folder).
            return Evaluation("allow" if self._trust.get(call.name) and call.name not in self._inline else "ask")
        return ruling

    def _denied(self, call_id: str, reply: PermissionReply) -> list[OutputEvent]:
        """The end of a call that the agent is told of later, with all the other answers."""
        self._told.add(call_id)
        said = f"{DENIED}: {reply.reason}" if reply.reason else DENIED
        name = self._calls[call_id].name
        return [ToolResult(tool_call_id=call_id, output=said, is_error=True), ToolCall(id=call_id, name=name, status="failed")]

    def _note_ruling(self, call_id: str, ruling: Evaluation) -> None:
        by = "trust" if ruling.rule is None else f"policy[{ruling.rule}]"
        if ruling.verdict == "ask":
            return self._note(call_id, "asked", by if ruling.rule is not None else "default", ruling.reason)
        if ruling.verdict == "deny":
            return self._note(call_id, "denied", by, ruling.reason)
        outcome: Outcome = "trusted" if ruling.rule is None and ruling.reason is None else "allowed"
        self._note(call_id, outcome, CLIENT if ruling.rule is None and ruling.reason else by, ruling.reason)

    def _note(self, call_id: str, outcome: Outcome, by: str, reason: str | None) -> None:
        call = self._calls.get(call_id)
        name, given = (call.name, call.input) if call else ("", None)
        self.decisions.append(Decision(outcome, by, name, call_id, given, reason))


def _reply(call_id: str, ruling: Evaluation) -> PermissionReply | None:
    if ruling.verdict == "allow":
        return PermissionReply(call_id, granted=True)
    return PermissionReply(call_id, granted=False, reason=ruling.reason) if ruling.verdict == "deny" else None
