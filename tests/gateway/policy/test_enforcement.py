"""PolicyEnforcer: events, replies and decisions for the calls of a run, by rules and grants."""

from __future__ import annotations

from typing import Any

from drivers.contract.agent import PermissionReply, ToolReply
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import AwaitedCall, Awaiting, OutputEvent, ToolCall, ToolResult
from drivers.contract.messages import ToolUseBlock
from gateway.policy.decision_record import TIME_LIMIT
from gateway.policy.enforcement import PolicyEnforcer
from gateway.policy.rules import Evaluation, Policy, Rule

RULES = Policy(
    [
        Rule(tool="shell", when={"command": "git *"}, decide="allow"),
        Rule(tool="shell", when={"command": "rm *"}, decide="deny", reason="never"),
        Rule(tool="shell", when={"command": "push *"}, decide="ask"),
    ]
)


def create_enforcer(*, trust: bool = False, policy: Policy = RULES) -> PolicyEnforcer:
    return PolicyEnforcer(policy, [ToolGrant("shell", trust), ToolGrant("lookup", True)])


def started_call(call_id: str, command: str = "ls", name: str = "shell") -> ToolCall:
    return ToolCall(id=call_id, name=name, status="started", input={"command": command})


def awaiting_client(*call_ids: str, wants: Any = "permission", optional: tuple[str, ...] = ()) -> Awaiting:
    return Awaiting(calls=tuple(AwaitedCall(id=c, wants=wants, optional=c in optional) for c in (*call_ids, *optional)))


def outcomes(found: PolicyEnforcer) -> list[tuple[str, str, str]]:
    return [(decision.call_id, decision.outcome, decision.by) for decision in found.decisions]


def test_calls_that_rules_decide_are_answered_without_the_client() -> None:
    found = create_enforcer()
    calls = [started_call("a", "git status"), started_call("b", "rm x")]
    enforced = found.apply([*calls, awaiting_client("a", "b", optional=("c",))])
    assert enforced.events == calls
    assert enforced.replies == [PermissionReply("a", "allow"), PermissionReply("b", "deny", "never")]
    assert outcomes(found) == [("a", "allowed", "policy[0]"), ("b", "denied", "policy[1]")]
    assert found.held == {}


def test_decisions_are_sent_to_the_client_when_another_call_awaits_it() -> None:
    found = create_enforcer()
    enforced = found.apply(
        [started_call("a", "git status"), started_call("b", "rm x"), started_call("c", "ls"), awaiting_client("a", "b", "c")]
    )
    assert enforced.replies == []
    *_, result, failed, awaiting = enforced.events
    assert result == ToolResult(tool_call_id="b", output="Tool call denied: never", is_error=True)
    assert failed == ToolCall(id="b", name="shell", status="failed")
    assert awaiting == Awaiting(
        calls=(AwaitedCall(id="a", wants="permission", optional=True), AwaitedCall(id="c", wants="permission"))
    )
    assert found.release([PermissionReply("c", "allow")]) == [
        PermissionReply("a", "allow"), PermissionReply("b", "deny", "never"),
    ]  # fmt: skip
    # The client has the result of the denied call already.
    assert found.apply([result, failed]).events == []
    assert found.apply([ToolResult(tool_call_id="a", output="x")]).events != []


def test_client_may_deny_a_call_that_a_rule_allows() -> None:
    found = create_enforcer()
    found.apply([started_call("a", "git status"), started_call("c", "ls"), awaiting_client("a", "c")])
    assert found.release([PermissionReply("c", "allow"), PermissionReply("a", "deny")]) == []


def test_permission_request_for_a_trusted_tool_without_rules_goes_to_the_client() -> None:
    found = create_enforcer()
    enforced = found.apply([started_call("l", name="lookup"), awaiting_client("l")])
    assert (enforced.replies, enforced.events[-1]) == ([], awaiting_client("l"))


def test_trust_applies_to_calls_without_a_matching_rule() -> None:
    found = create_enforcer(trust=True)
    enforced = found.apply(
        [started_call("a", "ls"), started_call("b", "git a"), started_call("l", name="lookup"), awaiting_client("a", "b")]
    )
    assert enforced.replies == [PermissionReply("a", "allow"), PermissionReply("b", "allow")]
    assert outcomes(found) == [("l", "trusted", "trust"), ("a", "trusted", "trust"), ("b", "allowed", "policy[0]")]


def test_rules_take_precedence_over_trust() -> None:
    found = create_enforcer(trust=True)
    enforced = found.apply([started_call("a", "push it"), started_call("b", "ls; rm x"), awaiting_client("a", "b")])
    assert enforced.events[-1] == awaiting_client("a")
    assert outcomes(found) == [("a", "asked", "policy[2]"), ("b", "denied", "policy[1]")]


def test_rule_that_allows_a_whole_tool_acts_like_trust() -> None:
    found = create_enforcer(policy=Policy([Rule(tool="shell", decide="allow")]))
    assert found.apply([started_call("a", "ls")]).replies == []
    assert outcomes(found) == [("a", "allowed", "policy[0]")]


def test_earlier_grant_allows_the_repeated_call_unless_a_rule_denies_it() -> None:
    found = create_enforcer()
    old = [ToolUseBlock(tool_call_id=c, name="shell", input={"command": c}) for c in ("push it", "rm x")]
    found.begin([ToolGrant("shell")], old)
    enforced = found.apply([started_call("a", "push it"), started_call("b", "rm x"), awaiting_client("a", "b")])
    assert enforced.replies == [PermissionReply("a", "allow"), PermissionReply("b", "deny", "never")]
    assert found.apply([started_call("c", "push it"), awaiting_client("c")]).events[-1] == awaiting_client("c")


def test_begin_replaces_the_grants() -> None:
    found = create_enforcer(trust=True)
    found.begin([ToolGrant("shell")])
    assert found.apply([started_call("a", "ls"), awaiting_client("a")]).events[-1] == awaiting_client("a")


def test_application_tools_can_be_denied_but_not_allowed_by_rules() -> None:
    policy = Policy([Rule(tool="app_no", decide="deny", reason="no"), Rule(tool="app*", decide="allow")])
    found = create_enforcer(policy=policy)
    enforced = found.apply(
        [started_call("a", name="app_no"), started_call("b", name="app_yes"), awaiting_client("a", "b", wants="result")]
    )
    assert enforced.events[-1] == awaiting_client("b", wants="result")
    found.answered([ToolReply("b", "x")], "client")
    assert found.release([ToolReply("b", "x")]) == [PermissionReply("a", "deny", "no")]
    assert outcomes(found)[-1] == ("b", "answered", "client")


def test_permission_request_for_an_unknown_call_goes_to_the_client() -> None:
    assert create_enforcer(trust=True).apply([awaiting_client("a")]).events == [awaiting_client("a")]


def test_replies_and_cancellations_are_recorded_as_decisions() -> None:
    found = create_enforcer()
    found.apply([started_call(c) for c in "abcd"])
    found.answered([PermissionReply("a", "allow"), PermissionReply("b", "deny", "why"), ToolReply("c", "x")], "client")
    found.answered([PermissionReply("d", "deny", "late")], TIME_LIMIT)
    found.cancelled(["a"])
    assert [(d.call_id, d.outcome, d.by, d.reason) for d in found.decisions] == [
        ("a", "granted", "client", None), ("b", "refused", "client", "why"), ("c", "answered", "client", None),
        ("d", "timed_out", TIME_LIMIT, "late"), ("a", "cancelled", "client", None),
    ]  # fmt: skip


def test_other_events_are_passed_on_in_order() -> None:
    events: list[OutputEvent] = [started_call("a"), ToolResult(tool_call_id="z", output=1), started_call("b")]
    assert create_enforcer().apply(events).events == events


def test_slow_call_is_evaluated_once_and_before_its_event_is_applied() -> None:
    found = create_enforcer()
    line = "ls " + "x" * 1000
    events = [started_call("a", line), awaiting_client("a")]
    (call,) = found.slow_calls(events)
    found.add_evaluations([(call, Evaluation("deny", reason="too slow"))])
    assert found.apply(events).replies == [PermissionReply("a", "deny", "too slow")]
    # Other input is evaluated again.
    assert found.apply([started_call("a", "git status"), awaiting_client("a")]).replies == [PermissionReply("a", "allow")]
    assert found.slow_calls([started_call("b", "rm x"), awaiting_client("b")]) == []
    assert found.slow_calls([started_call("b", line)]) == []


def test_call_runs_by_later_trust_but_not_after_a_restart() -> None:
    found = create_enforcer(trust=False)
    found.apply([started_call("a"), awaiting_client("a")])
    assert found.lacks_trust_only("a")
    # Of an agent of an earlier gateway: whether the client must decide is not known any more.
    for line in ("ls", "ls " + "x" * 1000):
        found = create_enforcer(trust=False)
        found.add_calls({"a": ToolUseBlock(tool_call_id="a", name="shell", input={"command": line})})
        assert not found.lacks_trust_only("a")


def test_client_is_asked_about_a_call_that_no_sandbox_confines() -> None:
    rule = Policy([Rule(tool="shell", when={"command": "git *"}, decide="allow")])
    for trust, policy in ((False, rule), (True, Policy([Rule(tool="shell", when={"command": "x"}, decide="ask")]))):
        found = create_enforcer(trust=trust, policy=policy)
        asked = Awaiting(calls=(AwaitedCall(id="a", wants="permission", decided_by="client"),))
        enforced = found.apply([started_call("a", "git status"), asked])
        assert (enforced.replies, enforced.events[-1]) == ([], asked)
        assert outcomes(found) == [("a", "asked", "default")]
        # Nor when the client trusts the tool meanwhile.
        assert not found.lacks_trust_only("a")
    denied = create_enforcer(policy=Policy([Rule(tool="shell", decide="deny")]))
    denied.apply([started_call("a"), Awaiting(calls=(AwaitedCall(id="a", wants="permission", decided_by="client"),))])
    assert outcomes(denied) == [("a", "denied", "policy[0]")]


def cli_enforcer(policy: Policy = RULES) -> PolicyEnforcer:
    """An enforcer for a session whose CLI decides about the calls of untrusted tools."""
    grants = [ToolGrant("shell"), ToolGrant("read"), ToolGrant("lookup", True)]
    return PolicyEnforcer(policy, grants, left_to_cli=lambda tool: tool != "lookup")


def test_rules_decide_before_the_cli() -> None:
    found = cli_enforcer()
    calls = [started_call("a", "git status"), started_call("b", "rm x"), started_call("c", "ls")]
    left = Awaiting(calls=tuple(AwaitedCall(id=c, wants="permission", decided_by="cli") for c in "abc"))
    enforced = found.apply([*calls, left])
    assert enforced.events == calls
    assert enforced.replies == [
        PermissionReply("a", "allow"), PermissionReply("b", "deny", "never"), PermissionReply("c", "leave"),
    ]  # fmt: skip
    assert outcomes(found) == [("a", "allowed", "policy[0]"), ("b", "denied", "policy[1]"), ("c", "left", "cli")]


def test_client_is_asked_by_a_rule_before_the_cli_decides() -> None:
    found = cli_enforcer()
    left = Awaiting(calls=tuple(AwaitedCall(id=c, wants="permission", decided_by="cli") for c in "ab"))
    enforced = found.apply([started_call("a", "push x"), started_call("b", "ls"), left])
    assert enforced.replies == [] and [call.optional for call in left.calls] == [False, False]
    assert isinstance(enforced.events[-1], Awaiting)
    assert [(call.id, call.optional) for call in enforced.events[-1].calls] == [("a", False), ("b", True)]
    assert found.release([PermissionReply("a", "allow")]) == [PermissionReply("b", "leave")]


def test_call_that_no_rule_is_about_is_left_to_the_cli_which_asks() -> None:
    found = cli_enforcer()
    enforced = found.apply([started_call("r", name="read"), started_call("l", name="lookup"), awaiting_client("r")])
    assert enforced.events[-1] == awaiting_client("r")
    assert outcomes(found) == [("r", "left", "cli"), ("l", "trusted", "trust"), ("r", "asked", "default")]


def test_question_is_answered_by_the_user_unless_a_rule_denies_it() -> None:
    rules = Policy([Rule(tool="shell", when={"command": "rm *"}, decide="deny"), Rule(tool="shell", decide="allow")])
    found = create_enforcer(trust=True, policy=rules)
    asked = found.apply([started_call("a"), awaiting_client("a", wants="answer")])
    assert asked.events[-1] == awaiting_client("a", wants="answer") and asked.replies == []
    assert found.apply([started_call("b", "rm x"), awaiting_client("b", wants="answer")]).replies == [
        PermissionReply("b", "deny")
    ]
