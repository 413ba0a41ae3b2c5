"""Which slash commands of claude a client may use: none that changes what is locked, or what other sessions use. No state.

Measured with claude 2.1.329: `/model`, `/effort`, `/fast` and `/config model=…` change the model and its effort, as does the
front matter of a command or skill of the project, which may have the name of any built-in command. `/config` and others write to
the user's settings, which all sessions have.
"""

from __future__ import annotations

from collections.abc import Set

from drivers.codecs.slash_commands import first_word, without_spaces
from drivers.contract.driver_info import FAST_OPTION

OF_THE_USER = frozenset(
    {
        # They may change settings, logins or extensions.
        "config", "settings", "output-style", "mcp", "agents", "autocompact", "auto-mode-setup", "permissions", "allowed-tools",
        "plugin", "hooks", "login", "logout", "theme", "vim", "statusline", "privacy-settings", "color", "fast",
        # It writes the memory of the process, with its keys, to a file in the home folder.
        "heapdump",
        # They report what other sessions of the user are, or do.
        "insights", "list-agents", "team-onboarding",
    }
)  # fmt: skip
"""Commands for the user only: they change files that all sessions have, or read other sessions."""
MODEL_OPTIONS = frozenset({"model", "effort", FAST_OPTION})


def permitted(command: str, locked: Set[str], *, lasting: bool) -> bool:
    """Whether a client may use the command of this name: none with a locked model, which a command of a project may change.

    Parameters:
        locked: The options that the configuration locks.
        lasting: Whether the client may change files of the CLI, which apply to other sessions too.
    """
    return not locked & MODEL_OPTIONS and (lasting or command not in OF_THE_USER)


def name_of(text: str) -> str | None:
    """The name of the command that a prompt is; None if it is text."""
    text = without_spaces(text)
    return first_word(text[1:]) if text.startswith("/") else None
