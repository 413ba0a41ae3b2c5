"""What is said to claude: the lines that say it, and what of it the CLI has not taken up yet."""

from __future__ import annotations

from typing import Any

from drivers.claude.content import native_content
from drivers.contract.agent import Prompt

GO_ON_HERE = (
    "<system-reminder>The session was started anew while tool calls were open. What became of them stands above; the reply "
    '"No response requested." comes from the restart. Go on with the task; the user has said nothing new.</system-reminder>'
)
"""claude goes on only from a user's line, and puts that reply before it (2.1.329). With CLAUDE_CODE_RESUME_INTERRUPTED_TURN it
goes on by itself, but before it knows of the hook that asks for permission."""


class Said:
    """`verbatim`: nothing that is said is a command to the CLI."""

    def __init__(self, *, verbatim: bool) -> None:
        self._verbatim = verbatim
        self._unheard: list[tuple[Any, bool]] = []

    def prompt(self, prompt: Prompt) -> dict[str, Any]:
        """The line that begins a turn."""
        self._unheard.clear()
        return self._line(GO_ON_HERE if prompt.go_on else native_content(prompt.content), steers=False)

    def steer(self, prompt: Prompt) -> dict[str, Any]:
        """The line that says something to the agent at work."""
        return self._line(native_content(prompt.content), steers=True)

    def heard(self, content: Any) -> None:
        """The CLI has taken this up: it says it again."""
        plain = _plain(content)
        found = next((said for said in self._unheard if said[0] == plain), None)
        if found is not None:
            self._unheard.remove(found)

    @property
    def steered(self) -> bool:
        """Whether something was said to the agent at work that it has not taken up yet."""
        return any(steers for _, steers in self._unheard)

    def _line(self, content: Any, *, steers: bool) -> dict[str, Any]:
        content = _no_command(content) if self._verbatim else _command_last(content)
        self._unheard.append((_plain(content), steers))
        message = {"role": "user", "content": content}
        return {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": ""}


def _no_command(content: Any) -> Any:
    """A first character `/` is a command to the CLI, `/clear` among them; a line break before it is not seen."""
    if isinstance(content, str):
        return "\n" + content if content.startswith("/") else content
    return [{**block, "text": "\n" + block["text"]} if _begins(block) else block for block in content]


def _command_last(content: Any) -> Any:
    """Of several blocks only the last can be a command (2.1.329), and a client puts what comes along behind it."""
    if isinstance(content, str) or not content or not _begins(content[0]):
        return content
    return [*content[1:], content[0]]


def _begins(block: Any) -> bool:
    return str(block.get("text", "")).startswith("/")


def _plain(content: Any) -> Any:
    return content.strip() if isinstance(content, str) else content
