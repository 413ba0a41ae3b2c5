"""What an ACP agent's driver knows of its agent that the protocol does not say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from drivers.acp.app_tool_calls import AppTool, of_none
from drivers.acp.content import prompt_blocks
from drivers.acp.tool_calls import Call, kind_name, shown_input
from drivers.contract.agent import Prompt


class AgentProfile(NamedTuple):
    """How an agent's calls are named and shown, and what its prompts need. `silent` are texts of it that say nothing.

    `missing_is_empty`: it takes a file that is not there for an empty one, and no error. `slash_commands`: a prompt may be a
    command, so it is told which there are.
    """

    title: str = "the agent"
    name: Callable[[Call], str] = kind_name
    given: Callable[[Call], dict[str, Any]] = shown_input
    prompt: Callable[[Prompt], list[Any]] = lambda prompt: prompt_blocks(prompt.content)
    silent: frozenset[str] = frozenset()
    app_tool: AppTool = of_none
    missing_is_empty: bool = False
    slash_commands: bool = True
