"""Redacts secrets in errors, logs and raw lines: registered values, and text that matches patterns of common secrets.

The gateway's own secrets (keys, secrets of the configuration) are redacted everywhere, those of a session only in what belongs to
the session: a client must not be able to mask what others read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextvars import ContextVar

from drivers.contract.events import Error, OutputEvent, Stderr, Stdout

HIDDEN = "***"
SHORTEST = 4
"""Shorter values are not redacted: they occur in too many texts by chance."""
MIN_SECRET, MIN_SECRET_CHARACTERS = 8, 5
"""The length of a session's secret that is redacted, and how many different characters it has."""
MIN_UNNAMED, MIN_UNNAMED_CHARACTERS = 12, 8
"""The same of a value whose name does not mark it as secret. It has a letter and a digit too, and no whitespace."""
MAX_OF_SESSION = 4096
"""Values that are redacted for one session; then the oldest are dropped. Each costs a search in every text."""

_PATTERNS = re.compile(
    # Names start at a word boundary and are short, so that matching takes linear time on long words.
    # In order: a bearer header, keys of vendors, a value in a query string, a JSON field, the password in a URL.
    r"""(?ix) (?P<a> \bbearer\s+ ) [^\s"',;\\]+
    | \b (?:sk|pk|rk)-[\w-]{16,} | \bAIza[\w-]{30,}
    | (?P<b> (?<![\w-]) [\w-]{0,64} (?:key|token|secret|password) = ) [^&\s"'\\]+
    | (?P<c> (?<![\w-]) [\w-]{0,64} (?:api_?key|(?:access|auth|refresh)_?token|secret|password|authorization) \\?"\s*:\s*\\?" )
      (?:[^"\\]|\\[^"])+
    | (?P<d> ://[^/\s:@"]*: ) [^/\s@"]+ (?=@)"""
)

_MARKS = ("bearer", "sk-", "pk-", "rk-", "aiza", "key", "token", "secret", "password", "authorization", "://")
"""Each match of the patterns has one of these, in lower case."""


def redact_patterns(text: str) -> str:
    """Redact what looks like a secret, in texts that no program parses: logs and transcripts."""
    if text.isascii() and not any(map(text.lower().__contains__, _MARKS)):
        # Most lines of the log: the patterns take 50 us for one. Other letters than ASCII's may match as one of these.
        return text
    return _PATTERNS.sub(lambda found: "".join(part for part in found.groups() if part) + HIDDEN, text)


def is_secret(value: str, *, named: bool) -> bool:
    """Whether a client's value is long and varied enough to be redacted. `named`: its name marks it as secret."""
    if named:
        return len(value) >= MIN_SECRET and len(set(value)) >= MIN_SECRET_CHARACTERS
    mixed = re.search("[0-9]", value) and re.search("[A-Za-z]", value) and not re.search(r"\s", value)
    return len(value) >= MIN_UNNAMED and len(set(value)) >= MIN_UNNAMED_CHARACTERS and bool(mixed)


class Redactor:
    """Redacts registered values, and those of `shared`: that of a session has the gateway's as `shared`."""

    def __init__(self, shared: Redactor | None = None) -> None:
        self._shared = shared
        self._registered: dict[str, None] = {}
        self._secrets: list[str] = []

    def register(self, values: Iterable[str]) -> None:
        long = [value for value in values if len(value) >= SHORTEST]
        # The value, and the value as part of a JSON string.
        new = dict.fromkeys([*long, *(json.dumps(value, ensure_ascii=False)[1:-1] for value in long)])
        if new.keys() <= self._registered.keys():
            return
        self._registered |= new
        if self._shared is not None:
            for oldest in list(self._registered)[:-MAX_OF_SESSION]:
                del self._registered[oldest]
        self._sort()

    def forget(self, values: Iterable[str]) -> None:
        """Stop redacting values that are no longer valid."""
        for value in values:
            self._registered.pop(value, None)
        self._sort()

    def _sort(self) -> None:
        # Longest first: a secret that contains another one is redacted completely.
        self._secrets = sorted(self._registered, key=len, reverse=True)

    def clean(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, HIDDEN)
        return text if self._shared is None else self._shared.clean(text)

    def clean_event(self, event: OutputEvent) -> OutputEvent:
        """Return the event with raw lines and errors redacted. The agent's output to its user is not changed."""
        if isinstance(event, Stdout | Stderr):
            line = self.clean(event.line)
            return event if line == event.line else event.model_copy(update={"line": line})
        if isinstance(event, Error):
            message = self.clean(event.message)
            return event if message == event.message else event.model_copy(update={"message": message})
        return event


redactor_of_session: ContextVar[Redactor | None] = ContextVar("redactor_of_session", default=None)
"""The redactor of the session that the asyncio task works for; None outside of sessions."""


def current_redactor(shared: Redactor) -> Redactor:
    """Return the redactor of the session that the asyncio task works for, or the gateway's."""
    return redactor_of_session.get() or shared
