"""The codex driver: starts the codex CLI for one task and for a session, and probes it.

Its lines are read by drivers/codex/exec.py (a task) and drivers/codex/app_server.py (a session).
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from drivers.codex.grants import TOOLS, cli_sandbox
from drivers.codex.handshake import SERVICE_TIERS, SessionRequest
from drivers.codex.modes import MODES, QUESTION_TOOL
from drivers.codex.output_schema import is_strict
from drivers.codex.probe import CodexProbe
from drivers.contract.agent_specs import AgentSpec, Limits, SessionSpec, TaskSpec
from drivers.contract.codec import Command, Launch
from drivers.contract.driver_info import (
    ASK_MODE,
    FAST_OPTION,
    MODE_OPTION,
    SLASH_OPTION,
    Capabilities,
    Display,
    DriverInfo,
    Login,
    Mcp,
    Option,
    Permissions,
    Probe,
    Program,
    TakesSchema,
)
from drivers.contract.errors import AgentUnavailable, DriverError
from drivers.runtime.cli_agent import CliAgent
from drivers.runtime.cli_driver import CliDriver
from drivers.runtime.process import Spawner

# Else, without a network, the CLI prints "waiting for network" for ever. A setting, since an unknown `--disable` is an error.
SETTINGS = ("-c", "features.unbounded_connection_retries=false", "-c", "check_for_update_on_startup=false")
EPHEMERAL_LOGIN = ("-c", 'cli_auth_credentials_store="ephemeral"')
PROBE_SECONDS = 10.0

OPTIONS = (
    Option("model", "Model", "A model's name, such as gpt-5.5; empty is the CLI's own default."),
    Option("effort", "Reasoning effort", "How hard the model thinks, such as low or high; empty is the CLI's own default."),
    Option(
        FAST_OPTION, "Fast mode", "Faster answers, of some models with more usage; empty is the CLI's own setting.",
        choices=("", "on", "off"),
    ),
    Option("api_key", "API key", "An OpenAI API key for this session; empty uses the CLI's own login.", secret=True),
    Option(
        "system_prompt", "System prompt", "Whether a system message is added to the CLI's own prompt or replaces it.",
        default="append", choices=("append", "replace"),
    ),
    Option(
        "sandbox", "Sandbox", "The sandbox of commands that run without permission. The default is workspace-write for trusted "
        "tools of a session, and for a task that of the CLI's own settings (read-only, if they have none).",
        default="default", choices=("default", "read-only", "workspace-write", "danger-full-access"),
    ),
    Option(
        "rules", "Command rules", "The CLI's own rules files let commands run without permission. Refuse a session that needs "
        "permission for its shell where there are such files, or let them apply.",
        default="refuse", choices=("refuse", "apply"),
    ),
    Option(
        SLASH_OPTION, "Slash commands", "Whether a prompt of a session that begins with / can be a command, or is just text.",
        default="off", choices=("off", "on"),
    ),
    Option(
        MODE_OPTION, "Mode", "ask: each call of an untrusted tool asks. Else a mode of the CLI, which asks about what leaves its "
        "sandbox.", default=ASK_MODE, choices=(ASK_MODE, *(mode.id for mode in MODES)),
    ),
)  # fmt: skip


class CodexDriver(CliDriver):
    """OpenAI's codex CLI: one process a session, warm between turns."""

    name = "codex"

    def info(self) -> DriverInfo:
        return DriverInfo(
            title="Codex",
            description="OpenAI's coding agent, by its codex CLI.",
            program=Program(
                "codex",
                "npm install -g @openai/codex",
                logins=(Login("codex-login", "ChatGPT", ("login",)),),
                env=("CODEX_*", "OPENAI_*"),
            ),
            tools=TOOLS,
            options=OPTIONS,
            capabilities=Capabilities(
                seeds=True, system=True, image_data=True, app_tools=True, steers=True, additional_directories=True
            ),
            permissions=Permissions(MODES, question_tools=frozenset({QUESTION_TOOL})),
            mcp=Mcp(frozenset({"stdio", "http"}), tool_prefix="mcp__"),
            display=Display(tool_kinds={"update_plan": "think", "exec": "execute"}, plan_tools={"update_plan": "replace"}),
        )

    async def probe(self, spec: AgentSpec, spawner: Spawner) -> Probe:
        """Its version, whether it is logged in, the models of its catalogue, and its slash commands."""
        spec = replace(spec, program=native_program(spec.program))
        probe = await super().probe(spec, spawner)
        if probe.problem is not None:
            return probe
        codec, limits = CodexProbe(spec.cwd), Limits(start=PROBE_SECONDS)
        command = Command((spec.program, *spec.args, "app-server", *SETTINGS), spec.cwd, spec.env)
        try:
            agent = await CliAgent.start(Launch(command, codec), spawner, limits)
            await agent.close(0.0)
        except DriverError as error:
            return Probe(probe.version, f"codex {probe.version}: {error}")
        has_key = bool(_api_key(spec))
        return Probe(
            probe.version,
            None,
            True if has_key else codec.logged_in,
            codec.models,
            commands=codec.commands,
            model_names=codec.model_names,
            efforts=codec.efforts,
            fast_models=codec.fast_models,
        )

    def takes_schema(self, schema: Mapping[str, Any]) -> TakesSchema | None:
        return "with_prompt" if is_strict(schema) else None

    def home_folders(self, spec: AgentSpec) -> tuple[Path, ...]:
        return (_home(spec),)

    def task(self, spec: TaskSpec) -> Launch:
        model, effort, sandbox = spec.model or spec.options.get("model"), spec.options.get("effort"), spec.options.get("sandbox")
        argv = [native_program(spec.program), *spec.args, "exec", "--json", "--skip-git-repo-check", *SETTINGS]
        argv += [f"--model={model}"] if model else []
        argv += ["-c", f"model_reasoning_effort={json.dumps(effort)}"] if effort else []
        tier = SERVICE_TIERS.get(spec.options.get(FAST_OPTION, ""))
        argv += ["-c", f"service_tier={json.dumps(tier)}"] if tier else []
        argv += [f"--sandbox={cli_sandbox(sandbox, confined=spec.confined)}"] if sandbox and sandbox != "default" else []
        from drivers.codex.exec import CodexExecCodec

        # The CLI takes away one byte order mark.
        task = "\ufeff" + spec.task if spec.task.startswith("\ufeff") else spec.task
        key = _api_key(spec)
        env = {**spec.env, **({"CODEX_API_KEY": key} if key else {})}
        return Launch(Command((*argv, "-"), spec.cwd, env, stdin=task.encode()), CodexExecCodec())

    def session(self, spec: SessionSpec) -> Launch:
        # With the first session: 4 ms of the start of each command.
        from drivers.codex.app_server import CodexAppCodec

        session = SessionRequest.of(spec, _api_key(spec))
        # In a mode of its own the CLI decides by its rules too.
        asks = session.grants.needs_permission("shell") and session.grants.mode is None
        if spec.options.get("rules") != "apply" and asks:
            _refuse_rules(spec)
        login = EPHEMERAL_LOGIN if session.api_key else ()
        argv = (native_program(spec.program), *spec.args, "app-server", *SETTINGS, *login)
        codec = CodexAppCodec(session)
        return Launch(Command(argv, spec.cwd, spec.env), codec, additional_directories=spec.additional_directories)


def _home(spec: AgentSpec) -> Path:
    return Path(spec.env.get("CODEX_HOME") or Path(spec.env.get("HOME", "~")).expanduser() / ".codex")


def _api_key(spec: AgentSpec) -> str | None:
    # `codex exec` takes the key from this variable itself, `codex app-server` does not.
    return spec.options.get("api_key") or spec.env.get("CODEX_API_KEY") or None


def native_program(program: str) -> str:
    """The native binary behind the npm package's wrapper, where it is found; else the program as it is.

    A killed wrapper leaves the binary and what that runs behind, and it costs 40 MB and 40 ms more (codex 0.169.0).
    """
    wrapper = Path(os.path.realpath(program))
    if wrapper.name != "codex.js":
        return program
    package = wrapper.parent.parent
    system = {"linux": "linux", "darwin": "darwin", "win32": "win32"}.get(sys.platform, sys.platform)
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(platform.machine().lower(), platform.machine().lower())
    for scope in (package.parent, package / "node_modules" / "@openai"):
        for binary in sorted((scope / f"codex-{system}-{machine}").glob("vendor/*/bin/codex*")):
            if os.access(binary, os.X_OK):
                return str(binary)
    return program


def _refuse_rules(spec: SessionSpec) -> None:
    for path in _rules_files(spec):
        raise AgentUnavailable(
            f"{path} lets commands run without permission, but this session needs its client's permission for the shell. Remove "
            f"the file, or give the agent a CODEX_HOME without one, or trust the shell, or set the option rules to apply"
        )


def _rules_files(spec: SessionSpec) -> Iterator[Path]:
    home = _home(spec)
    folders = [home, *(folder / ".codex" for folder in (spec.cwd, *spec.cwd.parents)), Path("/etc/codex")]
    for folder in folders:
        yield from sorted((folder / "rules").glob("*.rules"))
