"""Which slash commands of claude a client may use: none that changes what is locked, or what other sessions use. No state.

Measured with claude 2.1.329: `/model`, `/effort`, `/fast` and `/config model=…` change the model and its effort, as does the
front matter of a command or skill of the project. `/config` and others write to the user's settings, which all sessions have.
"""

from __future__ import annotations

from collections.abc import Set

from drivers.contract.driver_info import FAST_OPTION

WRITING = frozenset(
    {
        "config", "settings", "output-style", "mcp", "agents", "autocompact", "auto-mode-setup", "permissions", "allowed-tools",
        "plugin", "hooks", "login", "logout", "theme", "vim", "statusline", "privacy-settings", "color", "fast", "insights",
    }
)  # fmt: skip
"""Commands that may change settings, logins or extensions of the user."""
MODEL_OPTIONS = frozenset({"model", "effort", FAST_OPTION})
NEUTRAL = frozenset({"clear", "compact", "context", "recap", "rename", "usage"})
"""Commands that no option changes: with a locked model only these, since any other may choose a model by its front matter."""


def permitted(command: str, locked: Set[str], *, lasting: bool) -> bool:
    """Whether a client may use the command of this name.

    Parameters:
        locked: The options that the configuration locks.
        lasting: Whether the client may change files of the CLI, which apply to other sessions too.
    """
    if locked & MODEL_OPTIONS:
        return command in NEUTRAL
    return lasting or command not in WRITING


def name_of(text: str) -> str | None:
    """The name of the command that a prompt is; None if it is text."""
    text = text.lstrip()
    words = text[1:].split(maxsplit=1)
    return (words[0] if words and not text[1:2].isspace() else "") if text.startswith("/") else None
