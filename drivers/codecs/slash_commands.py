"""Prompts that must not be read as commands of a CLI."""

from __future__ import annotations


def escape(text: str, prefix: str, starts: tuple[str, ...] = ("/",)) -> str:
    """The text with `prefix` before it if it begins like a command, which the CLI then does not recognize."""
    return prefix + text if text.startswith(starts) else text
