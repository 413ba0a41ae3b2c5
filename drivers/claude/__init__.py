"""The claude CLI: how it is started, its stream-json both ways, its tools, permissions and history."""

from drivers.claude.driver import ClaudeDriver

__all__ = ["ClaudeDriver"]
