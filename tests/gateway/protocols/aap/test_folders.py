"""Files and folders over AAP v3: completion of paths, and the files that a pending call would change."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.agents import folder_files
from gateway.agents.folder_files import FolderFiles
from tests.gateway.protocols.aap.test_session_updates import SESSIONS, WriteScenario, create, turn
from tests.support.cluster import placement
from tests.support.daemon import KEY, RunningGateway, gateway_config, http_client, run_gateway
from tests.support.named_keys import add_key
from tests.support.requests import expect_error, user_message


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of the user with files."""
    found = tmp_path / "project"
    for name in (
        "src/main.py",
        "src/parser/main_parser.py",
        "README.md",
        "docs/Main.md",
        "build/out.o",
        ".env",
        "node_modules/x.js",
    ):
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).touch()
    (found / ".gitignore").write_text("build/\n")
    return found


async def files(client: httpx.AsyncClient, session: str, **query: Any) -> dict[str, Any]:
    answer = await client.get(f"{SESSIONS}/{session}/files", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def folders(client: httpx.AsyncClient, prefix: str, agent: str = "echo", **query: Any) -> list[str]:
    answer = await client.get("/aap/v3/folders", params={"agent": agent, "prefix": prefix, **query})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["folders"])


async def test_files_of_a_session(tmp_path: Path, project: Path) -> None:
    async with run_gateway(gateway_config(tmp_path, server={"folders": "any"})) as running:
        client = running.client
        session = await create(client, options={"cwd": str(project)})
        everything = await files(client, session)
        assert everything == {
            "files": [
                {"path": path, "type": kind}
                for path, kind in (
                    (".env", "file"), (".gitignore", "file"), ("README.md", "file"), ("docs", "folder"), ("src", "folder"),
                    ("docs/Main.md", "file"), ("src/main.py", "file"), ("src/parser", "folder"),
                    ("src/parser/main_parser.py", "file"),
                )
            ],
            "truncated": False,
        }  # fmt: skip
        assert await files(client, session, limit=2) == {"files": everything["files"][:2], "truncated": True}
        for query, expected in (
            ("main", ["src/main.py", "docs/Main.md", "src/parser/main_parser.py"]),
            ("README.md", ["README.md"]),
            ("spmp", ["src/parser/main_parser.py"]),
            ("src/ma", ["src/main.py", "src/parser/main_parser.py"]),
            ("zzz", []),
            ("out.o", []),
            ("[(*", []),
        ):
            found = await files(client, session, q=query)
            assert [one["path"] for one in found["files"]] == expected, query
    # A folder that was removed.
    async with run_gateway(gateway_config(tmp_path, server={"folders": "any"})) as running:
        session = await create(running.client, options={"cwd": str(project / "docs")})
        (project / "docs" / "Main.md").unlink()
        (project / "docs").rmdir()
        assert "no folder" in await expect_error(running.client.get(f"{SESSIONS}/{session}/files"), 400)


async def test_bad_requests(portico: RunningGateway) -> None:
    # Bad requests for files.
    session, client = await create(portico.client), portico.client
    for query in ({"q": "x" * 201}, {"limit": 0}, {"limit": 501}):
        await expect_error(client.get(f"{SESSIONS}/{session}/files", params=query), 400)
    assert "no session" in await expect_error(client.get(f"{SESSIONS}/sess_x/files"), 404)
    other = {"Authorization": f"Bearer {await add_key(portico.gateway, 'other')}"}
    assert "no session" in await expect_error(client.get(f"{SESSIONS}/{session}/files", headers=other), 404)
    # Bad requests for folders.
    client = portico.client
    for query in (
        {},
        {"agent": "echo", "prefix": "/a\0"},
        {"agent": "echo", "limit": 0},
        {"agent": "echo", "prefix": "/" * 5000},
    ):
        await expect_error(client.get("/aap/v3/folders", params=query), 400)
    answer = await client.get("/aap/v3/folders", params={"agent": "none"})
    assert answer.status_code in (400, 404) and "none" in answer.json()["error"]


def test_links_and_large_folders(tmp_path: Path, project: Path) -> None:
    # Links are not followed.
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").touch()
    (project / "link").symlink_to(tmp_path / "secret")
    (project / "loop").symlink_to(project)
    (project / os.fsdecode(b"not-\xff-text")).touch()
    found, _ = FolderFiles().find(project, "", 1000)
    paths = {one.path: one.type for one in found}
    assert (paths["link"], paths["loop"]) == ("file", "file")
    assert not [path for path in paths if "key" in path or "not-" in path or path.startswith("loop/")]
    # A folder that has become a link.
    (tmp_path / "moved").symlink_to(project)
    with pytest.raises(Exception, match="not in the working folder"):
        FolderFiles().find(tmp_path / "moved", "", 10)
    # An ignore file that is none.
    other = tmp_path / "other"
    other.mkdir()
    (other / "a").touch()
    os.mkfifo(other / ".gitignore")
    found, more = FolderFiles().find(other, "", 10)
    assert ([one.path for one in found], more) == ([".gitignore", "a"], False)


def test_a_large_folder_is_listed_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(300):
        (tmp_path / f"folder-{n:03}").mkdir()
        (tmp_path / f"folder-{n:03}" / "file").touch()
    monkeypatch.setattr(folder_files, "MAX_ENTRIES", 350)
    found, more = FolderFiles().find(tmp_path, "", 1000)
    assert (len(found), more) == (350, True)
    # Those nearest to the top.
    assert sum(one.type == "folder" for one in found) == 300


def test_no_query_takes_long(tmp_path: Path) -> None:
    for n in range(1000):
        (tmp_path / f"{'a' * 240}-{n}").touch()
    began = time.thread_time()
    assert FolderFiles().find(tmp_path, "a" * 199 + "b", 10)[0] == []
    assert time.thread_time() - began < 2


async def test_a_list_is_used_again_for_some_seconds(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    lists = FolderFiles()
    assert [one.path for one in lists.find(tmp_path, "", 10)[0]] == ["a"]
    (tmp_path / "b").touch()
    assert [one.path for one in lists.find(tmp_path, "", 10)[0]] == ["a"]
    assert [one.path for one in FolderFiles().find(tmp_path, "", 10)[0]] == ["a", "b"]


async def test_folders_that_a_local_program_may_name(tmp_path: Path, project: Path) -> None:
    (project / ".hidden").mkdir()
    async with run_gateway(gateway_config(tmp_path, server={"folders": "any"})) as running:
        client, base = running.client, str(running.gateway.settings.data_dir / "workspaces" / "echo")
        assert await folders(client, "") == [base]
        assert await folders(client, f"{tmp_path}/pro") == await folders(client, f"{tmp_path}/PRO") == [str(project)]
        inside = [f"{project}/{name}" for name in ("build", "docs", "node_modules", "src")]
        assert await folders(client, f"{project}/") == inside
        assert await folders(client, f"{project}/", limit=2) == inside[:2]
        assert await folders(client, f"{project}/.") == [f"{project}/.hidden"]
        assert await folders(client, f"{project}/README") == []
        # Each of them can be the folder of a session; those of other users, and the data directory, cannot.
        for folder in inside:
            await create(client, options={"cwd": folder})
        if not placement():
            # Nodes on one machine know their own data directory only.
            assert str(running.gateway.settings.data_dir) not in await folders(client, f"{tmp_path}/")
        for prefix in ("relative", "~nobody-of-that-name/", "/no/such/folder/"):
            assert await folders(client, prefix) == []
        # The agent `script` has a folder in the configuration.
        scenes = tmp_path / "scenes"
        (scenes / "below").mkdir()
        assert await folders(client, f"{tmp_path}/", "script") == [str(scenes)]
        assert await folders(client, f"{scenes}/", "script") == [str(scenes / "below")]
        assert await folders(client, f"{project}/", "script") == []


async def test_folders_of_a_named_key(tmp_path: Path, project: Path) -> None:
    async with run_gateway(gateway_config(tmp_path, server={"folders": "any"})) as running:
        key = await add_key(running.gateway, "other")
        async with http_client(running.url) as client:
            client.headers["Authorization"] = f"Bearer {key}"
            [base] = await folders(client, "")
            assert base.endswith("other/echo")
            for prefix in (f"{project}/", "/", "/home/", f"{base}/../", "~/"):
                assert [one for one in await folders(client, prefix) if one != base] == []
            (Path(base) / "own").mkdir()
            (Path(base) / "link").symlink_to(project)
            assert await folders(client, f"{base}/") == [f"{base}/own"]


async def test_files_of_a_pending_call(tmp_path: Path, portico: RunningGateway, write_scenario: WriteScenario) -> None:
    client, file = portico.client, tmp_path / "scenes" / "a.txt"
    path = str(file)
    asks = {"name": "Write", "ask": True, "id": "a/1", "input": {"file_path": path, "content": "new"}}
    question = {"name": "AskUserQuestion", "question": True, "id": "q", "input": {"path": path}}
    scenario = write_scenario([{"parallel": [{"tool_call": asks}, {"tool_call": question}]}])
    session = await create(client, "script", scenario)
    file.write_text("old")
    await expect_error(client.get(f"{SESSIONS}/{session}/calls/a/1/files"), 404)
    await turn(client, session, user_message("go"))
    answer = await client.get(f"{SESSIONS}/{session}/calls/a%2F1/files")
    assert answer.status_code == 200, answer.text
    [found] = answer.json()["files"]
    assert (found["path"], found["exists"], found["text"], found["size"]) == (path, True, "old", 3)
    assert found["modified"].endswith("Z") and "problem" not in found
    file.write_text(f"the key is {KEY}")
    answer = await client.get(f"{SESSIONS}/{session}/calls/a/1/files")
    assert answer.json()["files"][0]["text"].startswith("the key is ") and KEY not in answer.text
    file.unlink()
    answer = await client.get(f"{SESSIONS}/{session}/calls/a/1/files")
    assert answer.json() == {"files": [{"path": path, "exists": False}]}
    # A question changes no file, and a call that nobody knows has none.
    for call in ("q", "none"):
        assert "waits for permission" in await expect_error(client.get(f"{SESSIONS}/{session}/calls/{call}/files"), 404)
    other = {"Authorization": f"Bearer {await add_key(portico.gateway, 'other')}"}
    await expect_error(client.get(f"{SESSIONS}/{session}/calls/a/1/files", headers=other), 404)
