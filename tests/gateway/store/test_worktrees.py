"""The rows of worktrees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gateway.store import SessionRecord, Store, WorktreeRecord
from tests.support.stores import store_url

FIRST = WorktreeRecord("sess_a", None, "claude", "/p/.git", "", "/data/p-a", "portico/a", "main", "0" * 40, 1.5)
SECOND = replace(FIRST, session_id="sess_b", owner="phone", base_branch=None, path="/data/ä-b", created_at=2.5, ready=True)


async def test_worktrees_outlive_their_sessions(tmp_path: Path) -> None:
    store = await Store.open(store_url(tmp_path))
    for record in (FIRST, SECOND):
        await store.sessions.create(SessionRecord(record.session_id, "claude", created_at=1.0), [])
        await store.worktrees.add(record)
    assert await store.worktrees.all() == [SECOND, FIRST]
    assert await store.worktrees.without_session() == [FIRST], "it is not ready"
    await store.worktrees.update("sess_a", ready=True, git_dir="/p/.git/worktrees/p-a")
    await store.worktrees.update("sess_none", ready=True)
    assert await store.worktrees.get("sess_a") == replace(FIRST, ready=True, git_dir="/p/.git/worktrees/p-a")
    assert await store.worktrees.without_session() == []
    await store.sessions.delete("sess_b")
    assert await store.worktrees.without_session() == [SECOND]
    await store.worktrees.remove("sess_b", "/the/path/of/an/earlier/one")
    assert await store.worktrees.get("sess_b") == SECOND
    await store.worktrees.remove("sess_b", SECOND.path)
    await store.worktrees.remove("sess_b", SECOND.path)
    assert [one.session_id for one in await store.worktrees.all()] == ["sess_a"]
    assert await store.worktrees.get("sess_b") is None
    await store.close()
