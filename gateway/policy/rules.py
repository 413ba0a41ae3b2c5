"""Policy rules about tool calls: allow, ask or deny. Pure functions; docs/policy.md explains the rules.

The first rule that matches a call decides. A shell command line is evaluated command by command, and the strictest verdict holds.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from drivers.contract.driver_info import ToolGrant
from gateway.policy.shell_commands import ShellCommand, ShellLine, parse

Verdict = Literal["allow", "ask", "deny"]
Pattern = str | bool | int | float

SHELL_ARGUMENTS = frozenset({"command", "cmd"})
"""Arguments with these names, at any depth, are shell command lines."""
LONG = 500
"""Characters of the input of a call that is evaluated in a thread: it may take milliseconds."""
OPERATOR = re.compile(r"[;&|<>`\n]|\$\(")
_STRICT: Sequence[Verdict | None] = ("deny", "ask", None, "allow")
UNKNOWN_LINE = "the command line does not name every command that it runs"


class Rule(BaseModel):
    """One rule. `tool` is a tool name with `*` and `?`. `when` maps argument paths to patterns, which must all match."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str = Field(min_length=1)
    when: dict[str, Pattern] = Field(default_factory=dict)
    decide: Verdict
    reason: str | None = None

    @field_validator("when")
    @classmethod
    def _has_names(cls, when: dict[str, Pattern]) -> dict[str, Pattern]:
        if any(not part for name in when for part in name.split(".")):
            raise ValueError('an argument is named by its path, such as command or "options.force"')
        return when

    @model_validator(mode="after")
    def _can_match(self) -> Rule:
        for name, pattern in self.when.items():
            if self.decide == "allow" and _is_shell(name) and isinstance(pattern, str) and OPERATOR.search(pattern):
                raise ValueError(
                    f"when.{name}: {pattern!r} has an operator of the shell, and each command of a line is evaluated on its own; "
                    "write a rule for each command"
                )
        return self

    def applies_to(self, tool: str) -> bool:
        """Whether the rule matches calls of that tool, at least with some arguments."""
        return glob(self.tool, tool)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The verdict about one call, and the index of the rule that gave it. None where no rule matches."""

    verdict: Verdict | None = None
    rule: int | None = None
    reason: str | None = None


NO_RULE = Evaluation()
NEUTRAL = Evaluation("allow")
"""No restriction by this part of a call. The strictest evaluation of all parts holds."""
Value = str | ShellCommand
_Values = Mapping[str, Sequence[Value]]


class Policy:
    """The rules of one agent, in order."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self.rules = tuple(rules)

    @property
    def restricts(self) -> bool:
        """Whether any rule asks or denies."""
        return any(rule.decide != "allow" for rule in self.rules)

    def effective_grants(self, grants: Iterable[ToolGrant]) -> tuple[ToolGrant, ...]:
        """Return the grants for the agent: a tool is trusted only if no rule can ask about or deny a call of it."""
        return tuple(ToolGrant(grant.name, self._trusts(grant)) for grant in grants)

    def _trusts(self, grant: ToolGrant) -> bool:
        for rule in self.rules:
            if rule.applies_to(grant.name):
                if rule.decide != "allow":
                    return False
                if not rule.when:
                    return True
        return grant.trust

    def evaluate(self, tool: str, given: Any) -> Evaluation:
        """Evaluate a call of `tool` with the input `given`."""
        rules = [(n, rule) for n, rule in enumerate(self.rules) if rule.applies_to(tool)]
        if not rules:
            return NO_RULE
        names = {name for _, rule in rules for name in rule.when}
        values = {name: list(_values(given, name.split("."), line=_is_shell(name))) for name in names}
        lines = {name: [parse(text) for text in values[name]] for name in names if _is_shell(name)}
        found: dict[str, Sequence[Value]] = {**values, **{name: _commands(of) for name, of in lines.items()}}
        rulings = [_first(rules, {**found, name: (command,)}) for name in lines for command in _commands(lines[name])]
        rulings = rulings or [_first(rules, found)]
        rulings += [_of_line(rules, found, name, line) for name in lines for line in lines[name]]
        last = len(self.rules)
        return min(rulings, key=lambda ruling: (_STRICT.index(ruling.verdict), last if ruling.rule is None else ruling.rule))


def glob(pattern: str, text: str) -> bool:
    """Whether the text matches the pattern: `*` is any characters, `?` is one character, ` *` at the end may be empty.

    The time is proportional to the length of the text, whatever the pattern.
    """
    return _compiled(pattern)(text)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Callable[[str], bool]:
    parts = pattern.split("*")
    bare = _compiled(pattern[:-2]) if pattern.endswith(" *") else None
    if len(parts) == 1:
        return _Piece(pattern).matches
    first, last, between = _Piece(parts[0]), _Piece(parts[-1]), [_Piece(part) for part in parts[1:-1] if part]

    def matches(text: str) -> bool:
        end = len(text) - last.size
        if first.size > end or not (first.is_at(text, 0) and last.is_at(text, end)):
            return bare is not None and bare(text)
        at = first.size
        for piece in between:
            # The first occurrence leaves the most text for the pieces that follow: none is tried twice.
            if (found := piece.find(text, at, end)) < 0:
                return bare is not None and bare(text)
            at = found + piece.size
        return True

    return matches


class _Piece:
    """A part of a pattern without `*`."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self.size = pattern, len(pattern)
        # Without quantifiers an expression does not backtrack.
        expression = "".join("." if char == "?" else re.escape(char) for char in pattern)
        self._expression = re.compile(expression, re.DOTALL) if "?" in pattern else None

    def matches(self, text: str) -> bool:
        return len(text) == self.size and self.is_at(text, 0)

    def is_at(self, text: str, start: int) -> bool:
        if self._expression is None:
            return text.startswith(self._pattern, start)
        return self._expression.match(text, start) is not None

    def find(self, text: str, start: int, end: int) -> int:
        """The first position between `start` and `end` where the whole piece is; -1 if there is none."""
        if self._expression is None:
            return text.find(self._pattern, start, end)
        found = self._expression.search(text, start, end)
        return -1 if found is None else found.start()


def _is_shell(name: str) -> bool:
    return name.rpartition(".")[2] in SHELL_ARGUMENTS


def _values(given: Any, path: Sequence[str], *, line: bool = False) -> Iterator[str]:
    """Yield the values at a path, descending into every element of lists. Values that are not strings become compact JSON.

    With `line`, a list of strings is the words of a command line and yields one value.
    """
    if isinstance(given, list):
        if line and not path and all(isinstance(item, str) for item in given):
            yield shlex.join(given)
            return
        for item in given:
            yield from _values(item, path, line=line)
    elif path:
        if isinstance(given, dict) and path[0] in given:
            yield from _values(given[path[0]], path[1:], line=line)
    else:
        yield given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, separators=(",", ":"))


def _commands(lines: Sequence[ShellLine]) -> list[ShellCommand]:
    return [command for line in lines for command in line.commands]


def _first(rules: Sequence[tuple[int, Rule]], unit: _Values) -> Evaluation:
    for n, rule in rules:
        if _holds(rule, rule.when, unit):
            return Evaluation(rule.decide, n, rule.reason)
    return NO_RULE


def _holds(rule: Rule, names: Iterable[str], unit: _Values) -> bool:
    return all(_matches(rule, name, str_of(rule.when[name]), unit.get(name, ())) for name in names)


def _matches(rule: Rule, name: str, pattern: str, found: Sequence[Value]) -> bool:
    """Whether the values match. To allow, all must match unchanged; to ask or deny, one in any of its forms is enough."""
    if rule.decide == "allow":
        return bool(found) and all(_allowed(pattern, value) for value in found)
    return any(glob(pattern, form) for value in found for form in _forms(value))


def _allowed(pattern: str, value: Value) -> bool:
    if isinstance(value, ShellCommand):
        return glob(pattern, value.text)
    # Rejects paths with `..`, which may lead outside of the directory that the pattern names.
    return glob(pattern, value) and (pattern == "*" or ".." in pattern or ".." not in re.split(r"[/\\]", value))


def _forms(value: Value) -> Iterable[str]:
    return value.forms if isinstance(value, ShellCommand) else {value, posixpath.normpath(value)}


def _of_line(rules: Sequence[tuple[int, Rule]], unit: _Values, name: str, line: ShellLine) -> Evaluation:
    """Evaluate a line as a whole, beyond its commands: no pattern allows a line that is not plain."""
    for n, rule in rules:
        if not _holds(rule, [other for other in rule.when if other != name], unit):
            continue
        if name not in rule.when:
            # A plain line is nothing but its commands, which were evaluated with this rule already.
            return NEUTRAL if line.plain and line.commands else Evaluation(rule.decide, n, rule.reason)
        if rule.decide != "allow":
            pattern = str_of(rule.when[name])
            if OPERATOR.search(pattern) and glob(pattern, line.text):
                return Evaluation(rule.decide, n, rule.reason)
            if not line.known:
                return Evaluation("ask", n, UNKNOWN_LINE)
    return NEUTRAL if line.plain and line.commands else NO_RULE


def str_of(pattern: Pattern) -> str:
    """Return the pattern as text: true, 5 and the like match the same JSON value."""
    return pattern if isinstance(pattern, str) else json.dumps(pattern)
