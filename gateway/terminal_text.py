"""Text of agents and clients for a log or a terminal, without control characters.

These could move the cursor, hide other output, or set the clipboard, in the terminal that shows the text, now or later.
"""

from __future__ import annotations

import json
import re

# C0 and C1 controls, DEL, line and paragraph separators, marks and overrides of the writing direction, invisible characters
# and tags.
_CONTROL = r"\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f"
_ANY = re.compile(f"[{_CONTROL}]")
_BUT_LINES = re.compile(rf"(?!\r?\n|\t)[{_CONTROL}]")


def one_line(text: str) -> str:
    """Return the text with every control character, line breaks included, as its escape sequence, such as `\\x1b`."""
    return _ANY.sub(_escaped, text)


def lines(text: str) -> str:
    """Return the text with every control character but line breaks and tabs as its escape sequence."""
    return _BUT_LINES.sub(_escaped, text)


def json_text(text: str) -> str:
    """Return the same JSON, written without control characters."""
    return _ANY.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _escaped(found: re.Match[str]) -> str:
    # The codec `unicode_escape` is a file that is opened at its first use, also when no file descriptor is left.
    return ascii(found[0])[1:-1]
