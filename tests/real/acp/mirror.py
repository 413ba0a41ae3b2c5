"""A model that says back what the user says, for requirements of agents that do; `slow` is answered slowly, and for `work` it
runs a command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.model_server.anthropic import AnthropicDialect
from tests.model_server.scenarios import Choice, Dialogue, Engine, Step, Text, ToolUse, text_step
from tests.model_server.serving import ModelServer, Recorder, serving

SLOW = Step((Text("word " * 600),), chunk=5, delay=0.05)
WORK = Step((ToolUse("Bash", {"command": "echo worked", "description": "work"}),))


class Mirror(Engine):
    """Looks at what was said last, and at nothing before it."""

    def __init__(self) -> None:
        super().__init__({})

    def choose(self, dialogue: Dialogue) -> Choice:
        last = dialogue[-1]
        if last.role == "tool":
            return Choice("mirror", 1, text_step("It is done."))
        # The CLI's own word on a prompt that was cancelled stands before the next one (2.1.329).
        received_text = "\n".join(text for text in last.texts if not text.startswith("[Request interrupted"))
        step = SLOW if "slow" in received_text else WORK if "work" in received_text else text_step(received_text)
        return Choice("mirror", 0, step)


@asynccontextmanager
async def mirror() -> AsyncIterator[ModelServer]:
    """Run a server for the length of the block."""
    recorder = Recorder()
    async with serving(AnthropicDialect(Mirror(), recorder).app()) as url:
        yield ModelServer(url, recorder.requests)
