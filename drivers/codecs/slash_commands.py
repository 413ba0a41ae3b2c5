"""Prompts that begin with a command of a CLI, and prompts that must not be read as one."""

from __future__ import annotations

BOM = "\ufeff"
"""A space for the CLIs, which are JavaScript. For Python it is none."""


def escape(text: str, prefix: str, starts: tuple[str, ...] = ("/",)) -> str:
    """The text with `prefix` before it if it begins like a command, which the CLI then does not recognize."""
    return prefix + text if text.startswith(starts) else text


def without_spaces(text: str) -> str:
    """Return the text from the first character on that neither a CLI nor Python takes for a space."""
    return text[next((n for n, character in enumerate(text) if not _is_space(character)), len(text)) :]


def first_word(text: str) -> str:
    """Return the text up to the first character that a CLI or Python takes for a space."""
    return text[: next((n for n, character in enumerate(text) if _is_space(character)), len(text))]


def _is_space(character: str) -> bool:
    return character.isspace() or character == BOM
