"""Hides secrets in what people may read: errors, logs, raw lines. Knows the secrets, not where they come from, and what
others look like."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from drivers.contract.events import Error, OutputEvent, Stderr, Stdout

HIDDEN = "***"
SHORTEST = 4
"""A shorter value would hide half of every text."""

_SHAPES = re.compile(
    # Names begin at the beginning of a word and are short, so that long words cost no more than their length.
    # A header's bearer, a vendor's key, a value in a query, a field of JSON, the password in a URL.
    r"""(?ix) (?P<a> \bbearer\s+ ) [^\s"',;\\]+
    | \b (?:sk|pk|rk)-[\w-]{16,} | \bAIza[\w-]{30,}
    | (?P<b> (?<![\w-]) [\w-]{0,64} (?:key|token|secret|password) = ) [^&\s"'\\]+
    | (?P<c> (?<![\w-]) [\w-]{0,64} (?:api_?key|(?:access|auth|refresh)_?token|secret|password|authorization) \\?"\s*:\s*\\?" )
      (?:[^"\\]|\\[^"])+
    | (?P<d> ://[^/\s:@"]*: ) [^/\s@"]+ (?=@)"""
)


def redact_patterns(text: str) -> str:
    """Hide what looks like a secret: for texts that nobody parses, logs and recordings."""
    return _SHAPES.sub(lambda found: "".join(part for part in found.groups() if part) + HIDDEN, text)


class Redactor:
    """The values to hide. `register` once, `clean` everywhere."""

    def __init__(self) -> None:
        self._secrets: list[str] = []

    def register(self, values: Iterable[str]) -> None:
        long = [value for value in values if len(value) >= SHORTEST]
        # As it is, and as it stands in a line of JSON.
        new = {*long, *(json.dumps(value, ensure_ascii=False)[1:-1] for value in long)} - set(self._secrets)
        # Longest first: a secret that contains another is hidden whole.
        self._secrets = sorted([*self._secrets, *new], key=len, reverse=True)

    def forget(self, values: Iterable[str]) -> None:
        """Values that open nothing any more."""
        gone = set(values)
        self._secrets = [secret for secret in self._secrets if secret not in gone]

    def clean(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, HIDDEN)
        return text

    def clean_event(self, event: OutputEvent) -> OutputEvent:
        """Raw lines and errors are cleaned; what the agent says to its user is not the gateway's to change."""
        if isinstance(event, Stdout | Stderr):
            line = self.clean(event.line)
            return event if line == event.line else event.model_copy(update={"line": line})
        if isinstance(event, Error):
            return Error(message=self.clean(event.message))
        return event
