"""The driver of Google's gemini CLI. Sessions use the Agent Client Protocol, tasks the CLI's stream-json output."""

from drivers.gemini.driver import GeminiDriver

__all__ = ["GeminiDriver"]
