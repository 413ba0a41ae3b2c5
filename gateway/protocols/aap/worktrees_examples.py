"""Examples of the extension about worktrees for `/openapi.json`."""

from __future__ import annotations

from typing import Any

from gateway.protocols.aap.examples import SESSION
from gateway.protocols.route_metadata import openapi_extra

_COMMIT = "3f2a9d0c5b7e4a1f8c6d2e9b0a7f5c3d1e8b6a49"
_WORKTREE: dict[str, Any] = {
    "sessionId": SESSION,
    "session": True,
    "agent": "claude",
    "repository": "/home/ada/project/.git",
    "path": "/home/ada/.local/share/portico/worktrees/project-0f4c1c9e2a7b",
    "branch": "portico/0f4c1c9e2a7b",
    "baseBranch": "main",
    "baseCommit": _COMMIT,
    "createdAt": "2026-11-20T09:30:03.310Z",
}


def _or_conflict(extra: dict[str, Any]) -> dict[str, Any]:
    """Add the response to a request that the state of the worktree, or of its repository, does not allow."""
    extra["responses"]["409"] = {"$ref": "#/components/responses/409"}
    return extra


LIST = openapi_extra(responses={200: {"worktrees": [_WORKTREE]}})
STATE = _or_conflict(
    openapi_extra(
        responses={
            200: {
                **_WORKTREE,
                "head": _COMMIT,
                "checkedOut": "portico/0f4c1c9e2a7b",
                "baseExists": True,
                "ahead": 0,
                "behind": 0,
                "files": [{"path": "src/main.py", "status": "modified", "additions": 3, "deletions": 1}],
                "truncated": False,
                "uncommitted": ["src/main.py"],
                "uncommittedCount": 1,
                "loses": "changes that are not committed (src/main.py)",
                "atWork": False,
            }
        }
    )
)
DIFF = _or_conflict(
    openapi_extra(
        responses={
            200: {
                "path": "src/main.py",
                "diff": "diff --git a/src/main.py b/src/main.py\n--- a/src/main.py\n+++ b/src/main.py\n@@ -1 +1 @@\n-1\n+2\n",
                "truncated": False,
            }
        }
    )
)
COMMIT = openapi_extra({"A commit": {"message": "Add the sum"}}, {201: {"commit": _COMMIT}})
MERGE = _or_conflict(openapi_extra(responses={200: {"outcome": "fast_forward", "branch": "main", "commit": _COMMIT}}))
REMOVE = _or_conflict(openapi_extra())
