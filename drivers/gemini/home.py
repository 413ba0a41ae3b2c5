"""A gemini home of a session's or a task's own: settings, policy, the user's log-in, and where it keeps its chats.

The CLI takes its home from GEMINI_CLI_HOME; the user's own HOME stays what it is, for the commands that tools run. Making the
home ready (`prepare`) is the only thing here that touches a file; it blocks.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from drivers.contract.errors import AgentUnavailable
from drivers.contract.specs import AgentSpec, SessionSpec
from drivers.gemini.history import LONG_AGO
from drivers.gemini.tools import SERVER

LOGIN = ("oauth_creds.json", "google_accounts.json", "gemini-credentials.json", "installation_id", ".env")
"""Files of the user's own ~/.gemini that hold the log-in: linked, so that a token that is refreshed stays refreshed."""
OWN = frozenset({"settings.json", "tmp", "history", "projects.json"})
"""What a task's home has of its own; everything else of ~/.gemini is linked."""
NOT_IN_SESSIONS = frozenset({"mcpServers", "mcp", "tools", "policyPaths", "adminPolicyPaths", "extensions"})
"""Settings that could give a session tools that it does not list."""
TOOL_TIMEOUT = 864_000_000
"""Ten days, in ms: how long the application may take is the gateway's to say. 10 minutes are the CLI's default."""
SLUG = "work"
"""The CLI's name for the working folder among its folders; any will do, since the home has one project only."""

BLOCKING_OUTPUT = b"""// Not to be loaded by what the CLI starts.
delete process.env.NODE_OPTIONS;
for (const stream of [process.stdout, process.stderr]) stream._handle?.setBlocking?.(true);
"""
"""Loaded by the CLI's node. Else the CLI writes to its pipe without blocking and exits before that is drained: what was printed
last is lost, its last line included, as soon as 64 KiB are not enough (measured with 0.61.0, node 20.20)."""


def home_of(spec: AgentSpec) -> Path:
    """The user's own folder of the CLI."""
    return Path(spec.env.get("GEMINI_CLI_HOME") or spec.env.get("HOME") or "~").expanduser() / ".gemini"


def prepare(user: Path, state: Path, *, whole: bool) -> None:
    """Make the folders, link the log-in (or, for a task, all that the user has set up), and age the chats."""
    own = state / ".gemini"
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    (state / "tmp").mkdir(exist_ok=True, mode=0o700)
    names = [entry.name for entry in user.iterdir() if entry.name not in OWN] if whole and user.is_dir() else list(LOGIN)
    for name in names:
        with suppress(FileExistsError):
            if (user / name).exists():
                (own / name).symlink_to(user / name)
    if (own / ".env").exists() and not (state / ".env").exists():
        # In a folder that is not trusted the CLI looks here only.
        (state / ".env").symlink_to(own / ".env")
    age_chats(own / "tmp" / SLUG / "chats")


def age_chats(chats: Path) -> None:
    """Give each session's chat file a name that no new session takes; see LONG_AGO. Of several the longest is the one that
    was gone on with: the others were begun by a load, and hold nothing."""
    by_session: dict[str, list[Path]] = {}
    for path in chats.glob("session-*.jsonl") if chats.is_dir() else ():
        if found := re.fullmatch(r"session-\d{4}-\d\d-\d\dT\d\d-\d\d-(.+)\.jsonl", path.name):
            by_session.setdefault(found[1], []).append(path)
    for session, paths in by_session.items():
        longest = max(paths, key=lambda path: path.stat().st_size)
        for path in paths:
            if path != longest:
                path.unlink()
        longest.rename(chats / f"session-{LONG_AGO}-{session}.jsonl")


def user_settings(user: Path) -> dict[str, Any]:
    """The user's own settings; none if there are none that can be read."""
    try:
        text = (user / "settings.json").read_text("utf-8")
        found = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def project_names(folder: Path) -> frozenset[str]:
    """All that stands in quotes in the project's settings: what its MCP servers may be called.

    The CLI starts those at once whose names are allowed; another of the same name takes a server's place in the session only.
    """
    try:
        return frozenset(re.findall(r'"([^"\n]*)"', (folder / ".gemini" / "settings.json").read_text("utf-8")))
    except (OSError, ValueError):
        return frozenset()


def session_settings(spec: SessionSpec, user: Path, tools: list[str]) -> dict[str, Any]:
    """The settings of a session: the user's, without what could bring in tools, and with the listed tools."""
    server = spec.tool_server
    headers = {"Authorization": f"Bearer {server.token}"} if server else {}
    servers = {SERVER: {"httpUrl": server.url, "headers": headers, "timeout": TOOL_TIMEOUT}} if server else {}
    given = user_settings(user)
    if spec.options.get("settings") == "none":
        given = {"security": {"auth": given.get("security", {}).get("auth", {})}}
    kept = {name: value for name, value in given.items() if name not in NOT_IN_SESSIONS}
    return _merged(
        kept,
        _required(spec, user, given),
        {"tools": {"core": tools, "shell": {"enableInteractiveShell": False}}, "mcpServers": servers},
        _directories(spec, given),
    )


def _directories(spec: SessionSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """The session's folders, beside those of the user's settings. Raises AgentUnavailable.

    In the settings: `--include-directories` takes a comma in a name for the end of it (0.61.0).
    """
    directories = [str(path) for path in spec.additional_directories]
    if not directories:
        return {}
    for path in directories:
        if "$" in path:
            # Filled in as a variable in every text of the settings, so it would be another folder; there is no way to escape it.
            raise AgentUnavailable(f"the additional directory {path!r} has a $ in its name, which gemini cannot take; rename it")
    context = given.get("context")
    users = context.get("includeDirectories") if isinstance(context, dict) else None
    return {"context": {"includeDirectories": [*directories, *(users if isinstance(users, list) else ())]}}


def task_settings(spec: AgentSpec, user: Path) -> dict[str, Any]:
    """The settings of a task: the user's, whole."""
    given = user_settings(user)
    return _merged(given, _required(spec, user, given), {})


def _required(spec: AgentSpec, user: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    security: dict[str, Any] = {"folderTrust": {"enabled": False}, "enablePermanentToolApproval": False}
    chosen = given.get("security", {}).get("auth", {}).get("selectedType") if isinstance(given.get("security"), dict) else None
    if way := log_in(spec, user) or chosen:
        security["auth"] = {"selectedType": way}
    # 10 attempts are the CLI's default: a model that is overloaded would take more than a minute to be told.
    return {
        "security": security,
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False, "maxAttempts": 3},
    }


def log_in(spec: AgentSpec, user: Path) -> str | None:
    """The way to log in that the environment or the session's key decides; None leaves it to the settings.

    It must be named: with GOOGLE_GEMINI_BASE_URL set the CLI else takes one that it then refuses.
    """
    if spec.options.get("api_key"):
        return "gemini-api-key"
    auth = user_settings(user).get("security", {}).get("auth", {})
    if isinstance(auth, dict) and auth.get("selectedType"):
        return None
    if spec.env.get("GEMINI_API_KEY"):
        return "gemini-api-key"
    if spec.env.get("GOOGLE_GENAI_USE_VERTEXAI") == "true" or spec.env.get("GOOGLE_API_KEY"):
        return "vertex-ai"
    return "oauth-personal" if (user / "oauth_creds.json").exists() else None


def environment(spec: AgentSpec, state: Path) -> dict[str, str]:
    """The environment over the agent's own. TMPDIR: the CLI leaves whole conversations there when a request fails."""
    key = spec.options.get("api_key")
    preload = f"--require {json.dumps(str(state / 'blocking-output.cjs'))}"
    trusts = spec.options.get("settings", "user,project") == "user,project"
    return {
        # Else a second node process, which survives the first.
        "GEMINI_CLI_NO_RELAUNCH": "true",
        **spec.env,
        "GEMINI_CLI_HOME": str(state),
        "TMPDIR": str(state / "tmp"),
        "GEMINI_CLI_TRUST_WORKSPACE": "true" if trusts else "false",
        "NODE_OPTIONS": " ".join(filter(None, (spec.env.get("NODE_OPTIONS"), preload))),
        **({"GEMINI_API_KEY": key} if key else {}),
    }


def files(state: Path, settings: Mapping[str, Any]) -> dict[Path, bytes]:
    """The files that every home has."""
    return {
        state / ".gemini" / "settings.json": json.dumps(settings, indent=1).encode(),
        state / "blocking-output.cjs": BLOCKING_OUTPUT,
    }


def project_files(state: Path, folder: str) -> dict[Path, bytes]:
    """What makes SLUG the CLI's name for the working folder."""
    own = state / ".gemini"
    marks = {own / place / SLUG / ".project_root": folder.encode() for place in ("tmp", "history")}
    return {own / "projects.json": json.dumps({"projects": {folder: SLUG}}).encode(), **marks}


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Objects merged by key, at every depth; of other values the last."""
    found: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            old = found.get(name)
            found[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) and value else value
    return found


def temporary(prefix: str = "portico-gemini-") -> Path:
    """A folder where nobody has given one. The caller removes it."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ.get("TMPDIR")))
