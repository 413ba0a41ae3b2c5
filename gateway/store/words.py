"""The words of a text, as the search compares them: one function for both databases, so that both find the same.

A word is a sequence of letters and digits, in lower case; Latin letters lose their accents. Characters of scripts without
spaces between words are words of their own.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

MOST_CHARACTERS = 64 * 1024
"""Characters of a text that are searched. Their words have at most 256 KiB; an index entry of PostgreSQL takes 1 MiB."""
LONGEST_WORD = 200
"""Characters of a word that are compared. PostgreSQL takes words of 2,046 bytes."""
MOST_FOLDS = 10_000
"""Characters whose folding is remembered, about 1 MB."""
_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_LETTER = f"[^\\W_{_ALONE}]"
_WORD = re.compile(f"{_LETTER}+(?:[\u0300-\u036f]{_LETTER}*)*|(?=[^\\W_])[{_ALONE}]")


class Word(NamedTuple):
    """A word as it is compared, and its place in the text."""

    folded: str
    begin: int
    end: int


class _Folds(dict[int, str | None]):
    """Of a character outside of ASCII words: what stands for it, for `str.translate`. None is nothing."""

    def __missing__(self, code: int) -> str | None:
        if len(self) >= MOST_FOLDS:
            self.clear()
        self[code] = found = None if 0x300 <= code <= 0x36F else _folded_character(chr(code))
        return found


def _folded_character(character: str) -> str:
    # Unicode's simple case folding: one character for one.
    folded = next((one for one in (character.casefold(), character.lower()) if len(one) == 1), character)
    base = unicodedata.normalize("NFD", folded)[0]
    return base.lower() if base.isascii() else folded


_FOLDS = _Folds()


def _folded(text: str) -> str:
    return text.lower() if text.isascii() else text.translate(_FOLDS)


def words_of(text: str) -> str:
    """Returns the words of a text, with one space between two. Empty if it has none."""
    return _folded(" ".join([word[:LONGEST_WORD] for word in _WORD.findall(text[:MOST_CHARACTERS])]))


def words_in(text: str) -> Iterator[Word]:
    """Yields the same words with their places."""
    for found in _WORD.finditer(text[:MOST_CHARACTERS]):
        yield Word(_folded(found[0][:LONGEST_WORD]), found.start(), found.end())
