"""What the gatekeeper makes of a run's events, by the rules and by what the client has granted."""

from __future__ import annotations

from typing import Any

from drivers.contract.agent import PermissionReply, ToolReply
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import AwaitedCall, Awaiting, OutputEvent, ToolCall, ToolResult
from drivers.contract.messages import ToolUseBlock
from gateway.policy.decision_record import TIME_LIMIT
from gateway.policy.enforcement import PolicyEnforcer
from gateway.policy.rules import Policy, Rule

RULES = Policy(
    [
        Rule(tool="shell", when={"command": "git *"}, decide="allow"),
        Rule(tool="shell", when={"command": "rm *"}, decide="deny", reason="never"),
        Rule(tool="shell", when={"command": "push *"}, decide="ask"),
    ]
)


def enforcer(*, trust: bool = False, policy: Policy = RULES) -> PolicyEnforcer:
    return PolicyEnforcer(policy, [ToolGrant("shell", trust), ToolGrant("lookup", True)])


def started(call_id: str, command: str = "ls", name: str = "shell") -> ToolCall:
    return ToolCall(id=call_id, name=name, status="started", input={"command": command})


def asking(*call_ids: str, wants: Any = "permission", optional: tuple[str, ...] = ()) -> Awaiting:
    return Awaiting(calls=tuple(AwaitedCall(id=c, wants=wants, optional=c in optional) for c in (*call_ids, *optional)))


def outcomes(found: PolicyEnforcer) -> list[tuple[str, str, str]]:
    return [(decision.call_id, decision.outcome, decision.by) for decision in found.decisions]


def test_a_stop_that_the_rules_decide_is_not_shown() -> None:
    found = enforcer()
    calls = [started("a", "git status"), started("b", "rm x")]
    enforced = found.apply([*calls, asking("a", "b", optional=("c",))])
    assert enforced.events == calls
    assert enforced.replies == [PermissionReply("a", True), PermissionReply("b", False, "never")]
    assert outcomes(found) == [("a", "allowed", "policy[0]"), ("b", "denied", "policy[1]")]
    assert found.held == {}


def test_where_the_client_is_asked_too_it_sees_what_was_decided() -> None:
    found = enforcer()
    enforced = found.apply([started("a", "git status"), started("b", "rm x"), started("c", "ls"), asking("a", "b", "c")])
    assert enforced.replies == []
    *_, result, failed, awaiting = enforced.events
    assert result == ToolResult(tool_call_id="b", output="Tool call denied: never", is_error=True)
    assert failed == ToolCall(id="b", name="shell", status="failed")
    assert awaiting == Awaiting(
        calls=(AwaitedCall(id="a", wants="permission", optional=True), AwaitedCall(id="c", wants="permission"))
    )
    assert found.release([PermissionReply("c", True)]) == [
        PermissionReply("a", True), PermissionReply("b", False, "never"),
    ]  # fmt: skip
    # The agent's own word on the denied call is no news.
    assert found.apply([result, failed]).events == []
    assert found.apply([ToolResult(tool_call_id="a", output="x")]).events != []


def test_the_client_may_refuse_what_a_rule_allows() -> None:
    found = enforcer()
    found.apply([started("a", "git status"), started("c", "ls"), asking("a", "c")])
    assert found.release([PermissionReply("c", True), PermissionReply("a", False)]) == []


def test_an_agent_that_asks_about_what_it_was_trusted_with_is_not_answered_for() -> None:
    found = enforcer()
    enforced = found.apply([started("l", name="lookup"), asking("l")])
    assert (enforced.replies, enforced.events[-1]) == ([], asking("l"))


def test_trust_holds_where_no_rule_does() -> None:
    found = enforcer(trust=True)
    enforced = found.apply([started("a", "ls"), started("b", "git a"), started("l", name="lookup"), asking("a", "b")])
    assert enforced.replies == [PermissionReply("a", True), PermissionReply("b", True)]
    assert outcomes(found) == [("l", "trusted", "trust"), ("a", "trusted", "trust"), ("b", "allowed", "policy[0]")]


def test_no_trust_goes_over_a_rule() -> None:
    found = enforcer(trust=True)
    enforced = found.apply([started("a", "push it"), started("b", "ls; rm x"), asking("a", "b")])
    assert enforced.events[-1] == asking("a")
    assert outcomes(found) == [("a", "asked", "policy[2]"), ("b", "denied", "policy[1]")]


def test_a_rule_that_allows_a_whole_tool_is_as_good_as_trust() -> None:
    found = enforcer(policy=Policy([Rule(tool="shell", decide="allow")]))
    assert found.apply([started("a", "ls")]).replies == []
    assert outcomes(found) == [("a", "allowed", "policy[0]")]


def test_a_grant_to_an_agent_that_is_gone_lets_its_call_pass_but_not_past_a_denial() -> None:
    found = enforcer()
    old = [ToolUseBlock(tool_call_id=c, name="shell", input={"command": c}) for c in ("push it", "rm x")]
    found.begin([ToolGrant("shell")], old)
    enforced = found.apply([started("a", "push it"), started("b", "rm x"), asking("a", "b")])
    assert enforced.replies == [PermissionReply("a", True), PermissionReply("b", False, "never")]
    assert found.apply([started("c", "push it"), asking("c")]).events[-1] == asking("c")


def test_an_agent_begins_with_what_is_granted_then() -> None:
    found = enforcer(trust=True)
    found.begin([ToolGrant("shell")])
    assert found.apply([started("a", "ls"), asking("a")]).events[-1] == asking("a")


def test_the_applications_tools_can_be_denied_and_nothing_else() -> None:
    policy = Policy([Rule(tool="app_no", decide="deny", reason="no"), Rule(tool="app*", decide="allow")])
    found = enforcer(policy=policy)
    enforced = found.apply([started("a", name="app_no"), started("b", name="app_yes"), asking("a", "b", wants="result")])
    assert enforced.events[-1] == asking("b", wants="result")
    found.answered([ToolReply("b", "x")], "client")
    assert found.release([ToolReply("b", "x")]) == [PermissionReply("a", False, "no")]
    assert outcomes(found)[-1] == ("b", "answered", "client")


def test_a_call_that_nobody_has_seen_is_asked_about() -> None:
    assert enforcer(trust=True).apply([asking("a")]).events == [asking("a")]


def test_the_answers_are_decisions_too() -> None:
    found = enforcer()
    found.apply([started(c) for c in "abcd"])
    found.answered([PermissionReply("a", True), PermissionReply("b", False, "why"), ToolReply("c", "x")], "client")
    found.answered([PermissionReply("d", False, "late")], TIME_LIMIT)
    found.cancelled(["a"])
    assert [(d.call_id, d.outcome, d.by, d.reason) for d in found.decisions] == [
        ("a", "granted", "client", None), ("b", "refused", "client", "why"), ("c", "answered", "client", None),
        ("d", "timed_out", TIME_LIMIT, "late"), ("a", "cancelled", "client", None),
    ]  # fmt: skip


def test_other_events_pass_in_their_order() -> None:
    events: list[OutputEvent] = [started("a"), ToolResult(tool_call_id="z", output=1), started("b")]
    assert enforcer().apply(events).events == events
