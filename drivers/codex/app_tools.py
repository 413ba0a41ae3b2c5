"""The names of application-side tools for codex: none is the name of a tool of the CLI itself. No state.

The CLI offers a dynamic tool with the name of one of its own to no model, and reports nothing (0.171.0).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

OWN_NAMES = frozenset(
    {
        # What the CLI offers to the models of 0.137 to 0.171, with features that are off by default.
        "apply_patch", "artifacts", "assign_agent_task", "assign_task", "close_agent", "code", "container.exec",
        "create_goal", "exec", "exec_command", "followup_task", "get_context_remaining", "get_goal", "grep_files",
        "image_gen", "image_generation", "interrupt_agent", "js_repl", "js_repl_reset", "list_agents",
        "list_available_plugins_to_install", "list_dir", "list_mcp_resource_templates", "list_mcp_resources",
        "local_shell", "memory", "multi_tool_use.parallel", "new_context", "notify", "parallel", "read_file",
        "read_mcp_resource", "report_agent_job_result", "request_permissions", "request_plugin_install",
        "request_user_input", "resume_agent", "send_input", "send_message", "shell", "shell_command", "skills",
        "sleep", "spawn_agent", "spawn_agents_on_csv", "test_sync_tool", "tool_search", "tool_suggest", "update_goal",
        "update_plan", "view_image", "wait", "wait_agent", "web", "web_search", "web_search_preview", "write_stdin",
    }
)  # fmt: skip
"""The names of the CLI's own tools for a model."""
RESERVED = ("mcp", "functions", "codex")
"""Beginnings of names that the CLI keeps for itself."""
VALID = re.compile(r"[A-Za-z0-9_-]{1,64}")
PREFIX = "app_"
LONGEST = 64


def names_for_cli(tools: Iterable[str]) -> Mapping[str, str]:
    """Return the names of application-side tools by the names that the CLI gets: the same, if they are valid and free."""
    given = list(tools)
    found: dict[str, str] = {name: name for name in given if _is_free(name)}
    for name in given:
        if name in found:
            continue
        base, n = PREFIX + re.sub(r"[^A-Za-z0-9_-]", "_", name), 1
        other = base[:LONGEST]
        while other in found:
            n += 1
            other = f"{base[: LONGEST - len(str(n)) - 1]}_{n}"
        found[other] = name
    return found


def _is_free(name: str) -> bool:
    return VALID.fullmatch(name) is not None and name not in OWN_NAMES and not name.startswith(RESERVED)
