"""The driver that docs/writing-a-driver.md walks through is one that works."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

from drivers import Limits, Prompt, SessionSpec, Spawner, TaskSpec
from drivers.events import AgentToken, OutputEvent, SessionEnd

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-driver.md"


def example() -> types.ModuleType:
    """The page's Python block as a module."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    assert len(code.splitlines()) < 60
    module = types.ModuleType("portico_cat")
    sys.modules["portico_cat"] = module
    exec(compile(code, "portico_cat.py", "exec"), module.__dict__)
    return module


async def run(agent: object) -> list[OutputEvent]:
    events: list[OutputEvent] = []
    while not events or not isinstance(events[-1], SessionEnd):
        events += await agent.receive()  # type: ignore[attr-defined]
    return events


async def test_a_session_of_the_example(tmp_path: Path) -> None:
    agent = await example().CatDriver().open(SessionSpec("/bin/cat", tmp_path, {}), Spawner(), Limits())
    for text in ("hello", "two\nlines"):
        await agent.prompt(Prompt(text))
        events = await run(agent)
        assert events[0] == AgentToken(text=text)
        assert events[-1].exit_code == 0
    await agent.close()


async def test_a_task_of_the_example(tmp_path: Path) -> None:
    agent = await example().CatDriver().execute(TaskSpec("/bin/cat", tmp_path, {}, task="-hello"), Spawner(), Limits())
    events = await run(agent)
    assert [event.kind for event in events] == ["agent_token", "session_end"]
    await agent.close()
