"""A model that echoes the user's text. A text with `slow` has a slow answer, one with `work` a tool call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.model_server.anthropic import AnthropicDialect
from tests.model_server.scenarios import Choice, Dialogue, Engine, Step, Text, ToolUse, text_step
from tests.model_server.serving import ModelServer, Recorder, serving

SLOW = Step((Text("word " * 600),), chunk=5, delay=0.05)
WORK = Step((ToolUse("Bash", {"command": "echo worked", "description": "work"}),))


class Mirror(Engine):
    """Chooses the reply by the last message only."""

    def __init__(self) -> None:
        super().__init__({})

    def choose(self, dialogue: Dialogue) -> Choice:
        last = dialogue[-1]
        if last.role == "tool":
            return Choice("mirror", 1, text_step("It is done."))
        # claude 2.1.329 adds a text about a cancelled prompt before the next one.
        prompt_text = "\n".join(text for text in last.texts if not text.startswith("[Request interrupted"))
        step = SLOW if "slow" in prompt_text else WORK if "work" in prompt_text else text_step(prompt_text)
        return Choice("mirror", 0, step)


@asynccontextmanager
async def mirror() -> AsyncIterator[ModelServer]:
    """Run a server for the length of the block."""
    recorder = Recorder()
    async with serving(AnthropicDialect(Mirror(), recorder).app()) as url:
        yield ModelServer(url, recorder.requests)
