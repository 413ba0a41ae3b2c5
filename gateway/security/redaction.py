"""Redacts secrets in errors, logs and raw lines: registered values, and text that matches patterns of common secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from drivers.contract.events import Error, OutputEvent, Stderr, Stdout

HIDDEN = "***"
SHORTEST = 4
"""Shorter values are not redacted: they occur in too many texts by chance."""

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


def redact_patterns(text: str) -> str:
    """Redact what looks like a secret, in texts that no program parses: logs and transcripts."""
    return _PATTERNS.sub(lambda found: "".join(part for part in found.groups() if part) + HIDDEN, text)


class Redactor:
    """Redacts registered values."""

    def __init__(self) -> None:
        self._secrets: list[str] = []

    def register(self, values: Iterable[str]) -> None:
        long = [value for value in values if len(value) >= SHORTEST]
        # The value, and the value as part of a JSON string.
        new = {*long, *(json.dumps(value, ensure_ascii=False)[1:-1] for value in long)} - set(self._secrets)
        # Longest first: a secret that contains another one is redacted completely.
        self._secrets = sorted([*self._secrets, *new], key=len, reverse=True)

    def forget(self, values: Iterable[str]) -> None:
        """Stop redacting values that are no longer valid."""
        gone = set(values)
        self._secrets = [secret for secret in self._secrets if secret not in gone]

    def clean(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, HIDDEN)
        return text

    def clean_event(self, event: OutputEvent) -> OutputEvent:
        """Return the event with raw lines and errors redacted. The agent's output to its user is not changed."""
        if isinstance(event, Stdout | Stderr):
            line = self.clean(event.line)
            return event if line == event.line else event.model_copy(update={"line": line})
        if isinstance(event, Error):
            return Error(message=self.clean(event.message))
        return event
