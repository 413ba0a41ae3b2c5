"""Real git repositories for tests, and gateways whose agents work in worktrees of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from tests.support.daemon import gateway_config

BASE = "/aap/v3"
SCENARIO = {
    "turns": [
        {"when": "^change", "steps": [{"write_file": {"path": "a.txt", "text": "changed\n"}}, {"text": "done"}]},
        {"when": "^new", "steps": [{"write_file": {"path": "new.txt", "text": "new\n"}}, {"text": "done"}]},
        {"when": "^wait", "steps": [{"wait_for_file": "go"}, {"text": "went"}]},
        {
            "when": "^ask",
            "steps": [{"tool_call": {"name": "write_note", "input": {"path": "secret/a", "text": "x"}, "ask": True}}],
        },
        {"when": "^read", "steps": [{"tool_call": {"name": "lookup", "client": {"read_file": "a.txt"}}}, {"text": "read"}]},
        {"steps": [{"text": "hello"}]},
    ]
}


def git(folder: Path, *arguments: str) -> str:
    """Run git as the user, and return what it writes."""
    command = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.rstrip("\n")


def make_repository(folder: Path, **files: str) -> Path:
    """Create a repository with one commit on `main`; the names of files have `_` for `.`."""
    shutil.copytree(_template(tuple(files.items())), folder)
    return folder


@cache
def _template(files: tuple[tuple[str, str], ...]) -> Path:
    """Make a repository to copy: six commands of git take longer than most tests of what happens in it."""
    folder = Path(tempfile.mkdtemp())
    git(folder, "init", "-q", "-b", "main")
    with_author(folder)
    for name, text in {"a_txt": "one\n", **dict(files)}.items():
        (folder / name.replace("_", ".")).write_text(text)
    (folder / "turns.json").write_text(json.dumps(SCENARIO))
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def with_author(folder: Path) -> None:
    """Give a repository an author of its own: the account of the tests may have none."""
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@example.org")


def commit_file(folder: Path, name: str, text: str) -> str:
    """Commit a file, and return the commit."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", f"change {name}")
    return git(folder, "rev-parse", "HEAD")


def worktree_config(data_dir: Path, repository: Path, **entry: Any) -> dict[str, Any]:
    """Return the configuration of a gateway with the agent `tree`, which works in worktrees of a repository."""
    agent = {"driver": "script", "cwd": str(repository), "worktree": True, "options": {"scenario": "turns.json"}, **entry}
    return gateway_config(data_dir, agents={"tree": agent})


async def new_session(client: httpx.AsyncClient, **options: str) -> str:
    """Create a session of the agent `tree`, and return its id."""
    answer = await client.post(f"{BASE}/sessions", json={"agent": {"name": "tree", "options": options}})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["sessionId"])


async def work(client: httpx.AsyncClient, session: str, name: str = "a.txt", text: str = "changed\n") -> Path:
    """Write a file in a session's worktree, as its agent does in a turn, and return the folder."""
    folder = await folder_of(client, session)
    (folder / name).write_text(text)
    return folder


async def turn(client: httpx.AsyncClient, session: str, text: str) -> None:
    """Run a turn to its end."""
    body = {"messages": [{"role": "user", "content": text}], "stream": "none"}
    answer = await client.post(f"{BASE}/sessions/{session}/turns", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["stopReason"] == "end_turn", answer.text


async def folder_of(client: httpx.AsyncClient, session: str) -> Path:
    """Return the folder of a session's worktree."""
    info = (await client.get(f"{BASE}/sessions/{session}")).json()["x-portico"]
    return Path(info["worktree"]["path"])


async def state_of(client: httpx.AsyncClient, session: str) -> dict[str, Any]:
    """Return the state of a session's worktree."""
    answer = await client.get(f"{BASE}/worktrees/{session}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def listed(client: httpx.AsyncClient) -> list[str]:
    """Return the ids of the sessions with a worktree."""
    return [one["sessionId"] for one in (await client.get(f"{BASE}/worktrees")).json()["worktrees"]]
