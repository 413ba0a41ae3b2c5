"""Policy rules about tool calls: allow, ask or deny. Pure but for the `resolve` of a caller; docs/policy.md explains the rules.

The first rule that matches a call decides. A shell command line is evaluated command by command, and the strictest verdict holds.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

if TYPE_CHECKING:
    from drivers.contract.driver_info import ToolGrant
    from gateway.policy.shell_commands import ShellCommand, ShellLine, Words

Verdict = Literal["allow", "ask", "deny"]
Pattern = str | bool | int | float

SHELL_ARGUMENTS = frozenset({"command", "cmd"})
"""Arguments with these names, at any depth, are shell command lines."""
LONG = 500
"""Characters of the input of a call that is evaluated in a thread: it may take milliseconds."""
OPERATOR = re.compile(r"[;&|<>`\n]|\$\(")
IGNORES_CASE = sys.platform in ("darwin", "win32")
"""Whether file systems usually ignore the case of names. Names of programs are compared without it on all platforms."""
_STRICT: Sequence[Verdict | None] = ("deny", "ask", None, "allow")
UNKNOWN_LINE = "the command line does not name every command that it runs"
MAY_RUN = "a program of the command line may run an argument that this rule is about"


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
Resolve = Callable[[str], Iterable[str]]
"""Returns the paths that a path stands for, such as the one without symbolic links. It may read the file system."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument that is no command. `forms` are the texts that `ask` and `deny` rules are compared to."""

    text: str
    forms: frozenset[str]


Value = Union[Argument, "ShellCommand"]
_Values = Mapping[str, Sequence[Value]]


@dataclass(frozen=True, slots=True)
class ExplainedCommand:
    """A command of a command line in the argument of this name, and what the rules say about it alone."""

    argument: str
    text: str
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Explanation:
    """The evaluation of a call, its command lines with the names of their arguments, and their commands."""

    evaluation: Evaluation
    lines: tuple[tuple[str, ShellLine], ...]
    commands: tuple[ExplainedCommand, ...]


@dataclass(frozen=True, slots=True)
class _Check:
    """A rule that applies to the tool of a call. Besides `when`, `links` has patterns whose directory is resolved."""

    index: int
    rule: Rule
    links: Mapping[str, frozenset[str]]


class Policy:
    """The rules of one agent, in order."""

    def __init__(self, rules: Sequence[Rule] = (), *, ignore_case: bool = IGNORES_CASE) -> None:
        self.rules = tuple(rules)
        self._ignore_case = ignore_case
        if any(_is_shell(name) for rule in self.rules for name in rule.when):
            # Not at the first call, while sessions stream.
            self._parse = _shell_parser()

    @property
    def restricts(self) -> bool:
        """Whether any rule asks or denies."""
        return any(rule.decide != "allow" for rule in self.rules)

    def restricts_tool(self, tool: str) -> bool:
        """Whether a rule may ask about or deny a call of this tool. With a `*` at the end, of some tool whose name begins so."""
        rules = [rule for rule in self.rules if rule.decide != "allow"]
        if not tool.endswith("*"):
            return any(rule.applies_to(tool) for rule in rules)
        prefix, heads = tool[:-1], [re.split(r"[*?]", rule.tool, maxsplit=1) for rule in rules]
        return any(head[0].startswith(prefix) or (len(head) > 1 and prefix.startswith(head[0])) for head in heads)

    def effective_grants(self, grants: Iterable[ToolGrant]) -> tuple[ToolGrant, ...]:
        """Return the grants for the agent: a tool is trusted only if no rule can ask about or deny a call of it."""
        return tuple(replace(grant, trust=self._trusts(grant)) for grant in grants)

    def _trusts(self, grant: ToolGrant) -> bool:
        for rule in self.rules:
            if rule.applies_to(grant.name):
                if rule.decide != "allow":
                    return False
                if not rule.when:
                    return True
        return grant.trust

    def is_slow(self, tool: str, given: Any) -> bool:
        """Whether to evaluate such a call outside of the event loop: its line is long, or links of its paths are resolved."""
        names = {name: rule for rule in self.rules if rule.when and rule.applies_to(tool) for name in rule.when}
        restricts = any(
            rule.decide != "allow" and not _is_shell(name) for rule in self.rules for name in rule.when if name in names
        )
        return bool(names) and (restricts or _size(given) > LONG)

    def explain(self, tool: str, given: Any, resolve: Resolve | None = None) -> Explanation:
        """Evaluate a call as `evaluate` does, and each command of its command lines alone, with the rest of the call."""
        parse = _shell_parser()
        rules = [(n, rule) for n, rule in enumerate(self.rules) if rule.applies_to(tool)]
        checks = [_Check(n, rule, _links(rule, resolve)) for n, rule in rules]
        names = {name for _, rule in rules for name in rule.when if not _is_shell(name)}
        others: dict[str, Sequence[Value]] = {
            name: [_argument(text, resolve) for text in _values(given, name.split("."))] for name in names
        }
        lines = [(name, parse(text)) for name, text in _command_lines(given)]
        commands = [
            ExplainedCommand(name, command.text, self._first(checks, {**others, name: (command,)}))
            for name, line in lines
            for command in line.commands
        ]
        return Explanation(self.evaluate(tool, given, resolve), tuple(lines), tuple(commands))

    def evaluate(self, tool: str, given: Any, resolve: Resolve | None = None) -> Evaluation:
        """Evaluate a call of `tool` with the input `given`. With `resolve`, paths are compared in all their forms."""
        rules = [(n, rule) for n, rule in enumerate(self.rules) if rule.applies_to(tool)]
        if not rules:
            return NO_RULE
        checks = [_Check(n, rule, _links(rule, resolve)) for n, rule in rules]
        names = {name for _, rule in rules for name in rule.when}
        # Only what rules that ask or deny look at is compared in all its forms.
        restricted = {name for _, rule in rules if rule.decide != "allow" for name in rule.when}
        resolvers = {name: resolve if name in restricted else None for name in names}
        texts = {name: list(_values(given, name.split("."), line=_is_shell(name))) for name in names}
        lines = {name: [self._parse(text) for text in texts[name]] for name in names if _is_shell(name)}
        found: dict[str, Sequence[Value]] = {
            name: _commands(lines[name]) if name in lines else [_argument(text, resolvers[name]) for text in texts[name]]
            for name in names
        }
        rulings = [self._first(checks, {**found, name: (command,)}) for name in lines for command in found[name]]
        rulings = rulings or [self._first(checks, found)]
        rulings += [self._of_line(checks, found, name, line) for name in lines for line in lines[name]]
        last = len(self.rules)
        return min(rulings, key=lambda ruling: (_STRICT.index(ruling.verdict), last if ruling.rule is None else ruling.rule))

    def _first(self, checks: Sequence[_Check], unit: _Values) -> Evaluation:
        for check in checks:
            if self._holds(check, check.rule.when, unit):
                return Evaluation(check.rule.decide, check.index, check.rule.reason)
            if check.rule.decide != "allow" and self._holds(check, check.rule.when, unit, may_run=True):
                return Evaluation("ask", check.index, MAY_RUN)
        return NO_RULE

    def _holds(self, check: _Check, names: Iterable[str], unit: _Values, *, may_run: bool = False) -> bool:
        return all(self._matches(check, name, unit.get(name, ()), may_run) for name in names)

    def _matches(self, check: _Check, name: str, found: Sequence[Value], may_run: bool) -> bool:
        """Whether the values match. To allow, all must match unchanged; to ask or deny, one in any of its forms is enough.

        With `may_run`, a command matches too if its program may run one that does.
        """
        pattern = str_of(check.rule.when[name])
        if check.rule.decide == "allow":
            return bool(found) and all(_allowed(pattern, value) for value in found)
        patterns = (pattern, *check.links.get(name, ()))
        return any(self._restricts(each, form, value) for each in patterns for value in found for form in value.forms) or any(
            may_run and self._may_run(each, value) for each in patterns for value in found
        )

    def _may_run(self, pattern: str, value: Value) -> bool:
        if isinstance(value, Argument):
            return False
        texts = (words.text[start:] for words in value.arguments for start in self._starts(pattern, words))
        return any(self._restricts(pattern, form, value) for form in (*value.may_run, *texts))

    def _starts(self, pattern: str, words: Words) -> list[int]:
        """Return the positions from which on the arguments of a command may match the pattern, a few at most."""
        beginning, star, _ = pattern.partition("*")
        if not beginning:
            # Such a pattern matches the whole command then.
            return []
        fold = str.lower if self._ignore_case else _lower_name
        head, text = _piece(fold(beginning)), words.text
        found = [start for start in words.starts if head.matches(fold(text[start : start + head.size]))]
        # From the first position the pieces behind `*` have the most text: what does not match there does not match later.
        found = found[:1] if star else [start for start in found if len(text) - start == head.size]
        return found + (self._starts(pattern[:-2], words) if pattern.endswith(" *") else [])

    def _restricts(self, pattern: str, form: str, value: Value) -> bool:
        if glob(pattern, form):
            return True
        if self._ignore_case:
            return glob(pattern.lower(), form.lower())
        return not isinstance(value, Argument) and glob(_lower_name(pattern), _lower_name(form))

    def _of_line(self, checks: Sequence[_Check], unit: _Values, name: str, line: ShellLine) -> Evaluation:
        """Evaluate a line as a whole, beyond its commands: no pattern allows a line that is not plain."""
        for check in checks:
            rule = check.rule
            if not self._holds(check, [other for other in rule.when if other != name], unit):
                continue
            if name not in rule.when:
                # A plain line is nothing but its commands, which were evaluated with this rule already.
                return NEUTRAL if line.plain and line.commands else Evaluation(rule.decide, check.index, rule.reason)
            if rule.decide != "allow":
                pattern = str_of(rule.when[name])
                if OPERATOR.search(pattern) and glob(pattern, line.text):
                    return Evaluation(rule.decide, check.index, rule.reason)
                if not line.known:
                    return Evaluation("ask", check.index, UNKNOWN_LINE)
        return NEUTRAL if line.plain and line.commands else NO_RULE


def glob(pattern: str, text: str) -> bool:
    """Whether the text matches the pattern: `*` is any characters, `?` is one character, ` *` at the end may be empty.

    The time is proportional to the length of the text, whatever the pattern.
    """
    return _compiled(pattern)(text)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Callable[[str], bool]:
    matches = _matcher(pattern)
    if not pattern.endswith(" *"):
        return matches
    bare = _matcher(pattern[:-2])
    return lambda text: matches(text) or bare(text)


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that matches as `fnmatch` does."""
    parts = pattern.split("*")
    if len(parts) == 1:
        return _Piece(pattern).matches
    first, last, between = _Piece(parts[0]), _Piece(parts[-1]), [_Piece(part) for part in parts[1:-1] if part]

    def matches(text: str) -> bool:
        end = len(text) - last.size
        if first.size > end or not (first.is_at(text, 0) and last.is_at(text, end)):
            return False
        at = first.size
        for piece in between:
            # The first occurrence leaves the most text for the pieces that follow: none is tried twice.
            if (found := piece.find(text, at, end)) < 0:
                return False
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


@lru_cache(maxsize=1024)
def _piece(pattern: str) -> _Piece:
    return _Piece(pattern)


def _shell_parser() -> Callable[[str], ShellLine]:
    # Its regular expressions take 15 ms, which neither the short commands nor a daemon without rules about commands need.
    from gateway.policy.shell_commands import parse

    return parse


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


def _command_lines(given: Any) -> Iterator[tuple[str, str]]:
    """Yield every command line of an input, with the path of its argument."""
    todo: list[tuple[str, Any]] = [("", given)]
    while todo:
        name, value = todo.pop()
        if name and _is_shell(name):
            yield from ((name, text) for text in _values(value, (), line=True))
        elif isinstance(value, list):
            todo += [(name, item) for item in reversed(value)]
        elif isinstance(value, dict):
            todo += [(f"{name}.{key}" if name else str(key), item) for key, item in reversed(value.items())]


def _commands(lines: Sequence[ShellLine]) -> list[ShellCommand]:
    return [command for line in lines for command in line.commands]


def _allowed(pattern: str, value: Value) -> bool:
    if not isinstance(value, Argument):
        return glob(pattern, value.text)
    # Rejects paths with `..`, which may lead outside of the directory that the pattern names.
    return glob(pattern, value.text) and (pattern == "*" or ".." in pattern or ".." not in re.split(r"[/\\]", value.text))


def _argument(text: str, resolve: Resolve | None) -> Argument:
    # normpath keeps two slashes at the start.
    forms = {text, posixpath.normpath(re.sub(r"^//+", "/", text))}
    if resolve is not None and _may_be_path(text):
        forms.update(resolve(text))
    return Argument(text, frozenset(forms))


def _may_be_path(text: str) -> bool:
    return 0 < len(text) < 4096 and "\0" not in text and "://" not in text


def _links(rule: Rule, resolve: Resolve | None) -> Mapping[str, frozenset[str]]:
    """The patterns of a rule that asks or denies, with the directory at their start resolved."""
    if resolve is None or rule.decide == "allow":
        return {}
    found = {}
    for name, pattern in rule.when.items():
        if _is_shell(name) or not isinstance(pattern, str) or not pattern.startswith(("/", "~/")):
            continue
        # Up to the last directory without `*` and `?`.
        end = re.split(r"[*?]", pattern, maxsplit=1)[0].rfind("/")
        paths = resolve(pattern[:end] or "/") if re.search(r"[*?]", pattern) else resolve(pattern)
        rest = pattern[end:] if re.search(r"[*?]", pattern) else ""
        found[name] = frozenset(path.rstrip("/") + rest for path in paths)
    return found


def _lower_name(text: str) -> str:
    """The text with its first word in lower case, up to a `*` or `?`."""
    end = len(re.split(r"[\s*?]", text, maxsplit=1)[0])
    return text[:end].lower() + text[end:]


def _size(given: Any) -> int:
    """The number of characters of all texts in an input."""
    size, todo = 0, [given]
    while todo and size <= LONG:
        value = todo.pop()
        if isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list):
            todo += value
            size += len(value)
        else:
            size += len(value) if isinstance(value, str) else 1
    return size


def str_of(pattern: Pattern) -> str:
    """Return the pattern as text: true, 5 and the like match the same JSON value."""
    return pattern if isinstance(pattern, str) else json.dumps(pattern)
