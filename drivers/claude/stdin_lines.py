"""The lines that bring a user's messages to claude, their ids, and which of these messages the CLI has not read yet."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from drivers.claude.commands import name_of
from drivers.claude.content import native_content
from drivers.codecs.slash_commands import escape
from drivers.contract.agent import AFTER_LIMIT, Prompt

CONTINUE = (
    "<system-reminder>The session was started anew while tool calls were open. What became of them stands above; the reply "
    '"No response requested." comes from the restart. Go on with the task; the user has sent nothing new.</system-reminder>'
)
"""claude continues only after a user's line, and puts that reply before it (2.1.329). With CLAUDE_CODE_RESUME_INTERRUPTED_TURN it
continues by itself, but before it has the hook that requests permissions."""


class UserMessages:
    """The messages of one process.

    Parameters:
        is_command: Whether a message may be the command of this name; if not, it is text.

    Attributes:
        ids: The ids of the run's messages. The CLI repeats them when it reads these messages; newer releases (2.1.329, not
            2.1.148) also in the lines about a turn and in its result.
    """

    def __init__(self, is_command: Callable[[str], bool]) -> None:
        self.ids: set[str] = set()
        self._is_command = is_command
        self._unread: dict[str, bool] = {}
        """Of each message, by its id: whether it steers the running agent."""

    def prompt(self, prompt: Prompt) -> dict[str, Any]:
        """The line that begins a turn."""
        self._unread.clear()
        self.ids.clear()
        if prompt == AFTER_LIMIT:
            return self._line(f"<system-reminder>{prompt.text} The user has sent nothing new.</system-reminder>", steers=False)
        return self._line(CONTINUE if prompt.go_on else native_content(prompt.content), steers=False)

    def steer(self, prompt: Prompt) -> dict[str, Any]:
        """The line of a message to the running agent."""
        return self._line(native_content(prompt.content), steers=True)

    def replayed(self, message_id: Any) -> None:
        """The CLI has read the message of this id, and repeats it."""
        self._unread.pop(message_id, None)

    @property
    def unread_steers(self) -> bool:
        """Whether the CLI has not read a message to the running agent yet."""
        return any(self._unread.values())

    def _line(self, content: Any, *, steers: bool) -> dict[str, Any]:
        texts = [content] if isinstance(content, str) else [str(block.get("text", "")) for block in content]
        names = [name for name in map(name_of, texts) if name is not None]
        content = _command_last(content) if all(map(self._is_command, names)) else _escaped(content)
        message_id = str(uuid.uuid4())
        self.ids.add(message_id)
        self._unread[message_id] = steers
        message = {"role": "user", "content": content}
        return {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": "", "uuid": message_id}


def escape_command(text: str) -> str:
    """A text that is no command: the CLI ignores a line break before the `/`, but does not take the rest for a command then."""
    return escape(text, "\n")


def without_forbidden(text: str, is_command: Callable[[str], bool]) -> str:
    """The text, as no command if it is one that is not permitted."""
    name = name_of(text)
    return text if name is None or is_command(name) else escape_command(text)


def _escaped(content: Any) -> Any:
    if isinstance(content, str):
        return escape_command(content)
    return [{**block, "text": escape_command(block["text"])} if _is_command(block) else block for block in content]


def _command_last(content: Any) -> Any:
    """Of several blocks only the last can be a command (2.1.329), and a client puts attachments after it."""
    if isinstance(content, str) or not content or not _is_command(content[0]):
        return content
    return [*content[1:], content[0]]


def _is_command(block: Any) -> bool:
    return str(block.get("text", "")).startswith("/")
