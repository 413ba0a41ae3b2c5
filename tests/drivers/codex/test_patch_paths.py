"""A trusted patch is accepted in a sandbox of the gateway only, and if its paths are inside; else the client decides about it.

The CLI opens the paths itself, after the check and outside of its own sandbox.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from drivers.codex.driver import CodexDriver
from drivers.codex.grants import Grants
from drivers.contract.agent import PermissionReply
from drivers.contract.agent_specs import SessionSpec
from drivers.contract.client_services import CHECK_PATHS, INVALID_PARAMS, ClientRequest, ClientResponse
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import AwaitedCall, Awaiting, ToolCall
from drivers.runtime.confined_files import ConfinedFolders
from drivers.runtime.local_client_services import CHECK_SECONDS, ClientRequests
from drivers.runtime.process import Spawner
from tests.drivers.codex.cli import PATCH, RUN, Server
from tests.support.manual_clock import ManualClock

APPROVAL = "item/fileChange/requestApproval"
OUTSIDE = ClientResponse(error="outside", code=INVALID_PARAMS)
ASKED = [Awaiting(calls=(AwaitedCall(id="p1", wants="permission"),))]
CLIENT_DECIDES = [Awaiting(calls=(AwaitedCall(id="p1", wants="permission", decided_by="client"),))]
ACCEPTED, DECLINED = ([{"id": 70, "result": {"decision": decision}}] for decision in ("accept", "decline"))


def requested(*, confined: bool = True) -> tuple[Server, ClientRequest]:
    """The CLI has requested approval of a trusted patch, and its paths are being checked."""
    server = Server("shell", trusted=["apply_patch"], confined=confined)
    server.begin("one")
    changes = [*PATCH["changes"], {"path": "b", "kind": {"type": "update", "move_path": "c/d"}, "diff": "x"}]
    server.notify("item/started", "one", item={**PATCH, "changes": changes})
    assert server.request(APPROVAL, "one", "p1") == []
    assert server.written() == [] and server.codec.debounce_seconds() is None
    (check,) = server.codec.client_requests
    return server, check


def test_a_patch_inside_is_accepted_in_a_sandbox() -> None:
    server, check = requested()
    assert (check.method, check.params) == (CHECK_PATHS, {"paths": ["/work/a", "b", "c/d"]})
    server.codec.client_responded(check, ClientResponse())
    assert server.written() == [{"id": 70, "result": {"decision": "accept"}}]
    # One response is one decision.
    server.codec.client_responded(check, ClientResponse())
    assert server.written() == []


def test_a_patch_that_leads_outside_needs_permission() -> None:
    server, check = requested()
    server.codec.client_responded(check, OUTSIDE)
    assert server.written() == [] and server.codec.debounce_seconds() is not None
    assert server.codec.debounced_events() == ASKED


def test_without_a_sandbox_the_client_decides_about_a_trusted_patch() -> None:
    for response in (ClientResponse(), OUTSIDE):
        server, check = requested(confined=False)
        server.codec.client_responded(check, response)
        assert server.written() == []
        assert server.codec.debounced_events() == CLIENT_DECIDES


def test_the_question_about_a_trusted_patch_has_the_reason() -> None:
    for confined in (False, True):
        server = Server("shell", trusted=["apply_patch"], confined=confined)
        server.begin("one")
        (started,) = server.notify("item/started", "one", item=PATCH)
        assert isinstance(started, ToolCall)
        assert ("sandbox" in started.input.get("reason", "")) == (not confined)


def test_the_reason_does_not_name_a_sandbox_that_would_not_help() -> None:
    read_only = Grants.of([ToolGrant("apply_patch", trust=True)], "read-only", ("/work",))
    assert read_only.client_decides_patches
    assert not read_only.asks_despite_trust


@pytest.mark.parametrize(("response", "answer"), [(ClientResponse(), ACCEPTED), (OUTSIDE, DECLINED)])
def test_paths_are_checked_again_when_the_client_has_granted_the_patch(response: ClientResponse, answer: object) -> None:
    server, check = requested(confined=False)
    server.codec.client_responded(check, ClientResponse())
    assert server.codec.debounced_events() == CLIENT_DECIDES
    server.codec.client_requests.clear()
    server.codec.reply(PermissionReply("p1", "allow"))
    assert server.written() == []
    (again,) = server.codec.client_requests
    assert (again.method, again.params) == (CHECK_PATHS, check.params)
    server.codec.client_responded(again, response)
    assert server.written() == answer


def test_a_patch_that_left_the_clis_sandbox_is_never_accepted_by_trust() -> None:
    # Without a shell the CLI applies a patch in its sandbox, and requests approval when that has refused it.
    server = Server(trusted=["apply_patch"])
    server.begin("one")
    server.notify("item/started", "one", item=PATCH)
    assert server.request(APPROVAL, "one", "p1", reason="command failed; retry without sandbox?") == []
    (check,) = server.codec.client_requests
    server.codec.client_requests.clear()
    server.codec.client_responded(check, ClientResponse())
    assert server.written() == []
    assert server.codec.debounced_events() == CLIENT_DECIDES
    # A path that leads out since the question is found here too.
    server.codec.reply(PermissionReply("p1", "allow"))
    (again,) = server.codec.client_requests
    server.codec.client_responded(again, OUTSIDE)
    assert server.written() == DECLINED


def test_a_check_that_ends_after_its_turn_has_no_effect() -> None:
    for response in (ClientResponse(), OUTSIDE):
        server, check = requested()
        server.codec.interrupt()
        server.written()
        server.codec.client_responded(check, response)
        assert server.written() == [] and server.codec.debounced_events() == []
        server, check = requested()
        server.complete("one")
        server.begin("two")
        server.codec.client_responded(check, response)
        assert server.written() == [] and server.codec.debounced_events() == []


def test_a_check_that_ends_while_the_client_is_asked_about_another_call() -> None:
    server, check = requested()
    server.notify("item/started", "one", item=RUN)
    command = {"threadId": "t", "turnId": "one", "itemId": "c1", "command": "ls"}
    server.send({"id": 71, "method": "item/commandExecution/requestApproval", "params": command})
    assert server.codec.debounced_events() == [Awaiting(calls=(AwaitedCall(id="c1", wants="permission"),))]
    server.codec.client_responded(check, OUTSIDE)
    server.codec.reply(PermissionReply("c1", "allow"))
    assert server.written() == [{"id": 71, "result": {"decision": "accept"}}]
    assert server.codec.debounced_events() == ASKED


async def test_paths_that_are_not_checked_in_time_are_not_inside(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(ConfinedFolders, "exists", lambda *_: answered.wait())
    requests = ClientRequests(tmp_path, {}, Spawner("test", clock=clock))
    serving = asyncio.create_task(requests.serve(ClientRequest("check", CHECK_PATHS, {"paths": ["file"]})))
    try:
        await clock.expire(CHECK_SECONDS)
        assert (await serving).error == f"the paths could not be checked within {CHECK_SECONDS:g} s"
    finally:
        answered.set()


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("new/file", True),
        ("inner/file", True),
        ("{base}/more/file", True),
        ("{base}/work/to-more/file", True),
        ("link/passwd", False),
        ("{base}/work/inner/../link/passwd", False),
        ("loop/file", False),
        ("../outside/file", False),
    ],
)
async def test_symbolic_links_of_a_path_are_resolved(tmp_path: Path, path: str, inside: bool) -> None:
    for folder in ("work/sub", "more", "outside"):
        (tmp_path / folder).mkdir(parents=True)
    for link, target in (("link", "../outside"), ("inner", "sub"), ("to-more", "../more"), ("loop", "loop")):
        (tmp_path / "work" / link).symlink_to(target)
    tools = (ToolGrant("apply_patch", trust=True),)
    spec = SessionSpec("codex", tmp_path / "work", {}, tools=tools, additional_directories=(tmp_path / "more",))
    launch = CodexDriver().session(spec)
    requests = ClientRequests(launch.command.cwd, {}, Spawner("test"), launch.additional_directories)
    request = ClientRequest("check", CHECK_PATHS, {"paths": ["sub/file", path.format(base=tmp_path)]})
    assert ((await requests.serve(request)).error is None) == inside
