"""How a session of `codex app-server` is opened: a thread started, seeded or resumed, with the grants of the session."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from drivers.codex.content import seed_items
from drivers.codex.grants import Grants
from drivers.codex.mcp_servers import ASKING, settings
from drivers.contract.info import ToolSpec
from drivers.contract.mcp_servers import McpServer
from drivers.contract.specs import SessionSpec

RETRIES = {"request_max_retries": 1, "stream_max_retries": 3}
"""For a provider of the user's own that sets none: errors are told in 3 s, by default in 25 s. Built-in ones take no settings."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a session asks of a fresh app-server."""

    grants: Grants
    thread: dict[str, Any]
    app_tools: tuple[ToolSpec, ...] = ()
    resume: str | None = None
    seed: Sequence[dict[str, Any]] = ()
    api_key: str | None = field(default=None, repr=False)
    servers: tuple[McpServer, ...] = ()
    directories: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: SessionSpec, api_key: str | None = None) -> Opening:
        options = spec.options
        directories = tuple(map(str, spec.additional_directories))
        grants = Grants.of(spec.tools, options.get("sandbox", ""), (str(spec.cwd), *directories))
        policy = ASKING if spec.mcp_servers and grants.policy == "never" else grants.policy
        thread: dict[str, Any] = {"cwd": str(spec.cwd), "approvalPolicy": policy, "sandbox": grants.sandbox_mode}
        # The CLI's own settings may name a model as the one who is asked.
        thread["approvalsReviewer"] = "user"
        if options.get("model"):
            thread["model"] = options["model"]
        if spec.system is not None:
            replaces = options.get("system_prompt") == "replace"
            thread["baseInstructions" if replaces else "developerInstructions"] = spec.system
        thread["config"] = grants.config()
        if options.get("effort"):
            thread["config"]["model_reasoning_effort"] = options["effort"]
        seed = seed_items(spec.history)
        return cls(grants, thread, spec.app_tools, spec.resume, seed, api_key, spec.mcp_servers, directories)

    @property
    def tools_digest(self) -> str:
        """Tells sets of application-side tools apart: a thread keeps those that it was started with, for ever."""
        if not self.app_tools:
            return ""
        return hashlib.sha256(to_json(_dynamic_tools(self.app_tools))).hexdigest()[:16]

    def native_id(self, thread_id: str) -> str:
        """The id to resume by: the thread's, and its tools'."""
        return f"{thread_id}:{self.tools_digest}" if self.tools_digest else thread_id

    @property
    def resumable(self) -> bool:
        """Whether the thread to resume has the tools that are wanted now."""
        return self.resume is not None and self.resume.partition(":")[2] == self.tools_digest

    def request(self, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The request that opens the thread, given the CLI's own configuration."""
        params = {**self.thread, "config": {**self.thread["config"], **_bounded(config, self.servers)}}
        if self.directories or self.resume is not None:
            params["runtimeWorkspaceRoots"] = self._roots(config)
        if self.resume is not None:
            return "thread/resume", {**params, "threadId": self.resume.partition(":")[0], "excludeTurns": True}
        if self.app_tools:
            params["dynamicTools"] = _dynamic_tools(self.app_tools)
        return "thread/start", params

    def _roots(self, config: dict[str, Any]) -> list[str]:
        """The folders that its sandbox lets be written: the session's, and those of the CLI's own settings.

        A thread that is resumed keeps those of before unless it is told others (0.169.0). The settings' `writable_roots` stay
        writable whatever is told, but the model hears of them only if they stand here.
        """
        users = (config.get("sandbox_workspace_write") or {}).get("writable_roots") or ()
        return list(dict.fromkeys([self.thread["cwd"], *self.directories, *users]))


def _bounded(config: dict[str, Any], brought: Sequence[McpServer]) -> dict[str, Any]:
    """Settings over the CLI's own: of MCP servers those alone that the client has brought along; retries that end."""
    bounded: dict[str, Any] = {}
    users = config.get("mcp_servers") or {}
    if servers := {**{name: {"enabled": False} for name in users}, **settings(brought, users)}:
        bounded["mcp_servers"] = servers
    name, providers = config.get("model_provider"), config.get("model_providers") or {}
    provider = providers.get(name)
    if isinstance(provider, dict):
        unset = {key: value for key, value in RETRIES.items() if provider.get(key) is None}
        if unset:
            bounded["model_providers"] = {name: unset}
    return bounded


def _dynamic_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    return [
        {"type": "function", "name": tool.name, "description": tool.description, "inputSchema": dict(tool.input_schema)}
        for tool in tools
    ]
