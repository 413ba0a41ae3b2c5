"""The private home folder of one gemini session or task: settings, environment, links to the user's login, and chat files.

The CLI reads GEMINI_CLI_HOME; HOME stays the user's, for the commands that tools run. `prepare_home` creates folders and links;
the functions that take the folder `user` read its settings. They block.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from drivers.contract.agent_specs import AgentSpec, SessionSpec
from drivers.contract.errors import AgentUnavailable
from drivers.gemini.history import CHANGED_LAST, OLD_TIME
from drivers.gemini.modes import own_mode, project_permits, user_rules
from drivers.gemini.tools import SERVER
from drivers.runtime.confined_files import ConfinedFolders, Entries, NotRegularFile, OutsideFolders, read_file, regular_file

LOGIN_FILES = ("oauth_creds.json", "google_accounts.json", "gemini-credentials.json", "installation_id", ".env")
"""Files of the user's ~/.gemini with the login. They are linked, so that the CLI writes a refreshed token to the user's file."""
PRIVATE_FILES = frozenset({"settings.json", "tmp", "history", "projects.json"})
"""What a task's home does not share with ~/.gemini; everything else is linked."""
CHAT_FILE = re.compile(r"session-\d{4}-\d\d-\d\dT\d\d-\d\d-(.+)\.jsonl")
MAX_USER_FILE = 1024 * 1024
"""Bytes of a file of the user's."""
MAX_PROJECT_SETTINGS = 1024 * 1024
"""Bytes of the settings of a project."""
TOOL_SETTINGS = frozenset({"mcpServers", "mcp", "tools", "policyPaths", "adminPolicyPaths", "extensions"})
"""The user's settings that could add tools to a session that it does not list; sessions ignore them."""
TOOL_TIMEOUT = 864_000_000
"""Ten days, in ms: the gateway limits how long the application may take. The CLI's default is 10 minutes."""
SLUG = "work"
"""The CLI's short name of the working folder. It is fixed, since the home has one project only."""

BLOCKING_OUTPUT = b"""// Not to be loaded by what the CLI starts.
delete process.env.NODE_OPTIONS;
for (const stream of [process.stdout, process.stderr]) stream._handle?.setBlocking?.(true);
"""
"""Loaded by the CLI's node. By default the CLI writes to its pipe without blocking and exits before the pipe is drained: beyond
64 KiB the end of the output, with its last line, is lost (measured with 0.61.0, node 20.20)."""


def user_folder(spec: AgentSpec) -> Path:
    """The user's own ~/.gemini."""
    return Path(spec.env.get("GEMINI_CLI_HOME") or spec.env.get("HOME") or "~").expanduser() / ".gemini"


def prepare_home(user: Path, state: Path, *, link_all: bool) -> None:
    """Create the folders, link the login (with `link_all` everything that the user has set up), and rename the chat files.

    Raises AgentUnavailable where a link that an earlier process of the CLI has created leads out of the folder `state`.
    """
    own = state / ".gemini"
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    everything = link_all and user.is_dir()
    names = [entry.name for entry in user.iterdir() if entry.name not in PRIVATE_FILES] if everything else LOGIN_FILES
    inside = ConfinedFolders((Path(os.path.realpath(state)),))
    try:
        with inside.entries(os.path.abspath(state / "tmp"), create_mode=0o700):
            pass
        with inside.entries(os.path.abspath(own), create_mode=0o700) as entries:
            for name in names:
                if (user / name).exists():
                    entries.link(name, user / name)
            has_variables = ".env" in entries.names()
        if has_variables:
            # The CLI reads only this one if the working folder is not trusted.
            with inside.entries(os.path.abspath(state)) as entries:
                entries.link(".env", own / ".env")
        if not link_all:
            # A task's home is new, and has a link to the policies of the user.
            _remove_policies(inside, own / "policies")
        rename_chats(inside, own / "tmp" / SLUG / "chats")
    except OutsideFolders:
        raise AgentUnavailable(f"a symbolic link in {state} leads out of it; remove it") from None


def _remove_policies(inside: ConfinedFolders, policies: Path) -> None:
    """Remove the policies of an earlier process: the copies of the user's that its mode had, and the policies that it has saved.

    Raises OutsideFolders.
    """
    with suppress(FileNotFoundError), inside.entries(os.path.abspath(policies)) as entries:
        for name in entries.names():
            if name.endswith(".toml"):
                entries.remove(name)


def rename_chats(inside: ConfinedFolders, chats: Path) -> None:
    """Give each session's chat file a name that no new session uses (see OLD_TIME), and the newest time (see NEWEST_TIME).

    Of several files of a session the longest has the conversation; the others were created by a load and are empty. Raises
    OutsideFolders.
    """
    with suppress(FileNotFoundError), inside.entries(os.path.abspath(chats)) as entries:
        by_session: dict[str, list[str]] = {}
        for name in entries.names():
            if found := CHAT_FILE.fullmatch(name):
                by_session.setdefault(found[1], []).append(name)
        for session, names in by_session.items():
            longest, new = max(names, key=entries.size), f"session-{OLD_TIME}-{session}.jsonl"
            for name in names:
                if name != longest:
                    entries.remove(name)
            entries.rename(longest, new)
            _set_newest(entries, new)


def _set_newest(entries: Entries, chat: str) -> None:
    # The CLI's tools can write in its home: a link there leads to a file that is not the session's.
    try:
        chat_file = regular_file(entries.open(chat, os.O_RDWR | os.O_NONBLOCK), "r+b")
    except (OSError, NotRegularFile):
        return
    with chat_file:
        size = chat_file.seek(0, os.SEEK_END)
        chat_file.seek(max(0, size - len(CHANGED_LAST)))
        end = chat_file.read()
        if end != CHANGED_LAST:
            # The last line of a process that was killed is not complete.
            chat_file.write(CHANGED_LAST if end.endswith(b"\n") else b"\n" + CHANGED_LAST)


def users_file(spec: AgentSpec, name: str) -> bytes | None:
    """Return the content of a file of the user's ~/.gemini; None if it is missing or is no regular file of MAX_USER_FILE bytes.

    Agents in a sandbox write in this folder, and get what is read: for these no link is followed that leads out of it. Raises
    AgentUnavailable for such a link, OSError.
    """
    user = user_folder(spec)
    try:
        return read_file(user / name, MAX_USER_FILE, inside=user if spec.confined else None)
    except OutsideFolders:
        raise AgentUnavailable(
            f"{user / name} is a symbolic link that leads out of {user}, which the sandbox forbids: replace it by a copy"
        ) from None
    except (FileNotFoundError, NotADirectoryError, NotRegularFile):
        return None


def user_settings(spec: AgentSpec) -> dict[str, Any]:
    """The user's settings; empty if the file is missing or malformed. Raises AgentUnavailable."""
    try:
        text = (users_file(spec, "settings.json") or b"").decode()
        found = json.loads("\n".join(line for line in text.split("\n") if not line.lstrip().startswith("//")))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def project_names(folder: Path) -> frozenset[str]:
    """All quoted strings of the project's settings, which include the names of its MCP servers.

    The CLI starts each of them whose name is allowed, before it takes the session's server of that name. So the client's servers
    must have other names. Raises AgentUnavailable for settings that are no regular file of at most MAX_PROJECT_SETTINGS bytes.
    """
    path = folder / ".gemini" / "settings.json"
    try:
        return frozenset(re.findall(r'"([^"\n]*)"', read_file(path, MAX_PROJECT_SETTINGS).decode("utf-8")))
    except NotRegularFile:
        limit = f"{MAX_PROJECT_SETTINGS // 1024} KiB"
        raise AgentUnavailable(f"{path} is not a regular file of at most {limit}; remove it") from None
    except (OSError, ValueError):
        return frozenset()


def require_own_servers(folder: Path, names: Sequence[str]) -> None:
    """Raise AgentUnavailable if the project's settings may have a server of one of these names.

    The CLI would take that one instead of the session's. An escaped character could hide the name.
    """
    path = folder / ".gemini" / "settings.json"
    try:
        text = read_file(path, MAX_PROJECT_SETTINGS)
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, NotRegularFile):
        text = b"\\u"
    for name in names:
        if f'"{name}"'.encode() in text or b"\\u" in text:
            raise AgentUnavailable(
                f"{path} may have an MCP server named {name!r}, which is the name of one of this session: rename it, and write "
                "the settings without \\u, or do without application-side tools and MCP servers of the client"
            )


def session_settings(spec: SessionSpec, user: Path, tools: list[str]) -> dict[str, Any]:
    """The settings of a session: the user's without TOOL_SETTINGS, and the listed tools. Raises AgentUnavailable."""
    server = spec.tool_server
    headers = {"Authorization": f"Bearer {server.token}"} if server else {}
    servers = {SERVER: {"httpUrl": server.url, "headers": headers, "timeout": TOOL_TIMEOUT}} if server else {}
    given = user_settings(spec)
    if spec.options.get("settings") == "none":
        given = {"security": {"auth": given.get("security", {}).get("auth", {})}}
    kept = {name: value for name, value in given.items() if name not in TOOL_SETTINGS}
    return _merged(
        kept,
        user_rules(given, tools) if own_mode(spec) is not None else {},
        _required(spec, user, given),
        # The CLI allows what is listed here without asking: in its own modes the policy file alone removes tools. Its plan mode,
        # which the user's settings can remove, is one of these.
        {"general": {"plan": {"enabled": True}}} if own_mode(spec) is not None else {"tools": {"core": tools}},
        {"tools": {"shell": {"enableInteractiveShell": False}}, "mcpServers": servers},
        _directories(spec, given),
    )


def _directories(spec: SessionSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """The session's additional directories, and those of the user's settings. Raises AgentUnavailable.

    They are in the settings since `--include-directories` splits names at commas (0.61.0).
    """
    directories = [str(path) for path in spec.additional_directories]
    if not directories:
        return {}
    for path in directories:
        if "$" in path:
            # The CLI expands variables in every string of the settings, and has no way to escape a $.
            raise AgentUnavailable(f"the additional directory {path!r} has a $ in its name, which gemini cannot take; rename it")
    context = given.get("context")
    users = context.get("includeDirectories") if isinstance(context, dict) else None
    return {"context": {"includeDirectories": [*directories, *(users if isinstance(users, list) else ())]}}


def task_settings(spec: AgentSpec, user: Path) -> dict[str, Any]:
    """The settings of a task: all of the user's."""
    given = user_settings(spec)
    return _merged(given, _required(spec, user, given), {})


def _required(spec: AgentSpec, user: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    security: dict[str, Any] = {"folderTrust": {"enabled": False}, "enablePermanentToolApproval": False}
    chosen = given.get("security", {}).get("auth", {}).get("selectedType") if isinstance(given.get("security"), dict) else None
    if auth := auth_type(spec, user) or chosen:
        security["auth"] = {"selectedType": auth}
    # The CLI's default is 10 attempts, which delays the error of an overloaded model by more than a minute.
    return {
        "security": security,
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False, "maxAttempts": 3},
    }


def auth_type(spec: AgentSpec, user: Path) -> str | None:
    """The authentication type of the session's key or the environment; None leaves it to the settings.

    It must be set: with GOOGLE_GEMINI_BASE_URL the CLI otherwise chooses a type that it then rejects.
    """
    if spec.options.get("api_key"):
        return "gemini-api-key"
    auth = user_settings(spec).get("security", {}).get("auth", {})
    if isinstance(auth, dict) and auth.get("selectedType"):
        return None
    if spec.env.get("GEMINI_API_KEY"):
        return "gemini-api-key"
    if spec.env.get("GOOGLE_GENAI_USE_VERTEXAI") == "true" or spec.env.get("GOOGLE_API_KEY"):
        return "vertex-ai"
    return "oauth-personal" if (user / "oauth_creds.json").exists() else None


def distrust(spec: AgentSpec) -> str | None:
    """Return why the CLI gets the working folder as one that is not trusted, with what to do; None for a trusted one. It blocks.

    In a folder that is not trusted the settings of the project have no effect, and the CLI starts no MCP servers, the gateway's
    and the client's included (0.61.0).
    """
    if spec.options.get("settings", "user,project") != "user,project":
        return "the option settings leaves out the project: set it to user,project"
    if isinstance(spec, SessionSpec) and own_mode(spec) is not None and project_permits(spec.cwd):
        path = spec.cwd / ".gemini" / "settings.json"
        return f"{path} may permit tools: remove tools, autoAccept and escapes from it, or choose the mode ask"
    return None


def require_trust(spec: SessionSpec) -> None:
    """Raise AgentUnavailable if the CLI would not start the session's MCP servers. It blocks."""
    if reason := distrust(spec):
        raise AgentUnavailable(
            f"gemini starts no MCP servers in a folder that is not trusted, and {reason}, or do without application-side tools "
            "and MCP servers of the client"
        )


def environment(spec: AgentSpec, state: Path) -> dict[str, str]:
    """The CLI's environment. TMPDIR is private: the CLI writes whole conversations there when a request fails."""
    key = spec.options.get("api_key")
    preload = f"--require {json.dumps(str(state / 'blocking-output.cjs'))}"
    return {
        # Without it the CLI starts a second node process, which survives the first.
        "GEMINI_CLI_NO_RELAUNCH": "true",
        **spec.env,
        "GEMINI_CLI_HOME": str(state),
        "TMPDIR": str(state / "tmp"),
        "GEMINI_CLI_TRUST_WORKSPACE": "false" if distrust(spec) else "true",
        "NODE_OPTIONS": " ".join(filter(None, (spec.env.get("NODE_OPTIONS"), preload))),
        **({"GEMINI_API_KEY": key} if key else {}),
    }


def home_files(state: Path, settings: Mapping[str, Any]) -> dict[Path, bytes]:
    """The files of every home."""
    return {
        state / ".gemini" / "settings.json": json.dumps(settings, indent=1).encode(),
        state / "blocking-output.cjs": BLOCKING_OUTPUT,
    }


def project_files(state: Path, folder: str) -> dict[Path, bytes]:
    """The files that make SLUG the CLI's short name of the working folder."""
    own = state / ".gemini"
    roots = {own / parent / SLUG / ".project_root": folder.encode() for parent in ("tmp", "history")}
    return {own / "projects.json": json.dumps({"projects": {folder: SLUG}}).encode(), **roots}


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Objects merged by key at every depth; of other values the last one wins."""
    found: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            old = found.get(name)
            found[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) and value else value
    return found
