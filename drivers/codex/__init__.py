"""The codex CLI: one task by `codex exec`, sessions by `codex app-server`; its tools, approvals and history."""

from drivers.codex.driver import CodexDriver

__all__ = ["CodexDriver"]
