"""The gemini CLI: a session is the Agent Client Protocol with what is specific to gemini; a task is its own JSON stream."""

from drivers.gemini.driver import GeminiDriver

__all__ = ["GeminiDriver"]
