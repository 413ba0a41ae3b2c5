"""What an editor sees of a session in a worktree."""

from __future__ import annotations

from pathlib import Path

from tests.gateway.worktrees.repositories import commit_file, make_repository, worktree_config
from tests.support.acp_client import connect
from tests.support.daemon import run_gateway

FILES = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}


async def test_editor_finds_its_sessions_by_the_folder_that_it_has_named(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "project")
    commit_file(repository, "app/x", "x")
    async with run_gateway(worktree_config(tmp_path, repository)) as running:
        client, connection = connect(running.gateway, "tree")
        await client.initialize()
        cwd = str(repository / "app")
        new = await client.request("session/new", {"cwd": cwd, "mcpServers": []})
        meta = new["_meta"]["portico/worktree"]
        folder = running.gateway.settings.data_dir / "worktrees" / f"project-{new['sessionId'][5:17]}"
        assert meta == {"cwd": str(folder / "app"), "path": str(folder), "branch": f"portico/{new['sessionId'][5:17]}"}
        for asked in (cwd, meta["cwd"]):
            [listed] = (await client.request("session/list", {"cwd": asked}))["sessions"]
            assert (listed["cwd"], listed["_meta"]["portico/worktree"]) == (cwd, meta)
            request = {"sessionId": new["sessionId"], "cwd": asked, "mcpServers": []}
            assert (await client.request("session/load", request))["_meta"]["portico/worktree"] == meta
            fork = await client.request("session/fork", request)
            assert fork["_meta"]["portico/worktree"]["path"] != meta["path"]
            await client.request("session/delete", {"sessionId": fork["sessionId"]})
        await client.request("session/delete", {"sessionId": new["sessionId"]})
        assert not folder.exists()
        await connection.close()


async def test_editor_serves_no_files_of_a_worktree(tmp_path: Path) -> None:
    """An editor refuses paths outside of its project: the agent reads and writes the files of a worktree by itself."""
    repository = make_repository(tmp_path / "project")
    async with run_gateway(worktree_config(tmp_path, repository)) as running:
        client, connection = connect(running.gateway, "tree")
        await client.initialize(**FILES)
        client.choose = lambda params: str(params["options"][0]["optionId"])
        session = await client.new(str(repository))
        assert (await client.prompt(session, "read a.txt"))["stopReason"] == "end_turn"
        assert client.service_requests.empty()
        calls = [one for one in client.updates(session) if one["sessionUpdate"] == "tool_call_update"]
        assert calls[-1]["status"] == "failed"
        await connection.close()
