"""`/v1/policy`: the rules about tool calls that are in force, and what they say about a call. For administrators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from drivers.runtime.file_threads import ANSWER_SECONDS, bounded
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.app import Gateway
from gateway.errors import BadRequest
from gateway.policy.paths import PathResolver
from gateway.policy.rules import Evaluation, Explanation, Rule
from gateway.protocols.authenticated_routes import authenticated_router
from gateway.protocols.operations.administrators import CurrentAdministrator
from gateway.protocols.operations.api_model import ApiModel
from gateway.protocols.route_metadata import BODY, errors
from gateway.security.redaction import Redactor
from gateway.text_limits import Name

RULE: JsonDict = {
    "index": 1,
    "tool": "Bash",
    "when": {"command": "rm *"},
    "decide": "deny",
    "reason": "Deleting files is not allowed.",
}

Decision = Literal["allow", "ask", "deny", "none"]


class RuleInfo(ApiModel):
    """A rule, with its place in the agent's list, from 0."""

    index: int
    tool: str
    when: dict[str, str | bool | int | float]
    decide: Literal["allow", "ask", "deny"]
    reason: str | None = None

    @classmethod
    def of(cls, index: int, rule: Rule, redactor: Redactor) -> RuleInfo:
        when = {name: redactor.clean(pattern) if isinstance(pattern, str) else pattern for name, pattern in rule.when.items()}
        reason = None if rule.reason is None else redactor.clean(rule.reason)
        return cls(index=index, tool=redactor.clean(rule.tool), when=when, decide=rule.decide, reason=reason)


class AgentRules(ApiModel):
    """The rules of an agent, in order: the first that matches a call decides."""

    agent: str
    rules: list[RuleInfo]


class PolicyResponse(ApiModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"agents": [{"agent": "claude", "rules": [RULE]}]}]})

    agents: list[AgentRules]


class PolicyCheck(ApiModel):
    """A call. `cwd` is the absolute folder in which relative paths are; by default the agent's own."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"agent": "claude", "tool": "Bash", "input": {"command": "git status && rm -r build"}}]}
    )

    agent: Name
    tool: str = Field(min_length=1, max_length=255)
    input: Any = None
    cwd: str | None = Field(default=None, max_length=4096)


class CheckedLine(ApiModel):
    """A command line. `plain`: it does nothing but run its commands. `known`: it names every command that it runs."""

    argument: str
    text: str
    plain: bool
    known: bool


class CheckedCommand(ApiModel):
    """A command of a line, and what the rules say about it alone; `rule` is the rule's place."""

    argument: str
    text: str
    decision: Decision
    rule: int | None = None


class PolicyCheckResponse(ApiModel):
    """What the rules say about a call. `none`: no rule matches, and the session's trust in the tool decides."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "decision": "deny",
                    "rule": RULE,
                    "reason": "Deleting files is not allowed.",
                    "lines": [{"argument": "command", "text": "git status && rm -r build", "plain": True, "known": True}],
                    "commands": [
                        {"argument": "command", "text": "git status", "decision": "allow", "rule": 0},
                        {"argument": "command", "text": "rm -r build", "decision": "deny", "rule": 1},
                    ],
                }
            ]
        }
    )

    decision: Decision
    rule: RuleInfo | None = None
    reason: str | None = None
    lines: list[CheckedLine]
    commands: list[CheckedCommand]


AgentQuery = Annotated[str | None, Query(description="Only the rules of this agent.")]


def router(gateway: Gateway) -> APIRouter:
    """Return the routes of a gateway."""
    routes = authenticated_router(gateway, "operations")

    @routes.get("/v1/policy")
    async def policy(administrator: CurrentAdministrator, agent: AgentQuery = None) -> PolicyResponse:
        """The rules about tool calls of every agent, or of one, in order."""
        found = list(gateway.agents) if agent is None else [gateway.agents.get(agent)]
        return PolicyResponse(agents=[AgentRules(agent=one.name, rules=_rules(one, gateway.redactor)) for one in found])

    @routes.post("/v1/policy/check", responses=errors(*BODY))
    async def check(administrator: CurrentAdministrator, request: PolicyCheck) -> PolicyCheckResponse:
        """What the rules say about a call, which is not made, and about each command of its command lines."""
        agent = gateway.agents.get(request.agent)
        resolver = _resolver(agent, request.cwd)
        try:
            explained = await bounded(lambda: agent.policy.explain(request.tool, request.input, resolver), clock=gateway.clock)
        except OSError as error:
            why = str(error) or f"the file system does not answer within {ANSWER_SECONDS:g} s"
            raise BadRequest(f"input: cannot be evaluated: {why}; in a session the client would be asked") from None
        return _response(agent, explained, gateway.redactor)

    return routes


def _rules(agent: ConfiguredAgent, redactor: Redactor) -> list[RuleInfo]:
    return [RuleInfo.of(n, rule, redactor) for n, rule in enumerate(agent.policy.rules)]


def _resolver(agent: ConfiguredAgent, cwd: str | None) -> PathResolver:
    if cwd is None:
        return PathResolver(lambda: agent.stored_directory(None, None))
    if not cwd.startswith("/") or "\0" in cwd:
        raise BadRequest("cwd: must be an absolute path")
    return PathResolver(lambda: Path(cwd))


def _response(agent: ConfiguredAgent, explained: Explanation, redactor: Redactor) -> PolicyCheckResponse:
    evaluation = explained.evaluation
    rule = None
    if evaluation.rule is not None:
        rule = RuleInfo.of(evaluation.rule, agent.policy.rules[evaluation.rule], redactor)
    return PolicyCheckResponse(
        decision=_decision(evaluation),
        rule=rule,
        reason=None if evaluation.reason is None else redactor.clean(evaluation.reason),
        lines=[CheckedLine(argument=name, text=line.text, plain=line.plain, known=line.known) for name, line in explained.lines],
        commands=[
            CheckedCommand(
                argument=command.argument,
                text=command.text,
                decision=_decision(command.evaluation),
                rule=command.evaluation.rule,
            )
            for command in explained.commands
        ],
    )


def _decision(evaluation: Evaluation) -> Decision:
    return evaluation.verdict or "none"
