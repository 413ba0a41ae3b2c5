"""The requirements of the profile acp-core-v1 of the client acpx that go beyond the official kit, by the names of its cases.

The cases of its mock agent are omitted: `echo_empty`, `unrecognized` and `background_completion` are commands of that agent, and
`permissions.read` and `.write` are its file system requests. Their permission checks are included.
"""

from __future__ import annotations

from typing import Any

from tests.gateway.protocols.acp.requirements import refused, requirement
from tests.gateway.protocols.acp.session_requirements import KIT
from tests.support.acp_client import Client


@requirement("acpx initialize.handshake, session.new.basic, session.update.termination: nothing is sent after the response")
async def one_turn(client: Client) -> None:
    session = await client.new()
    answer = await client.prompt(session, "one turn")
    assert client.received[-1]["result"] == answer
    assert client.updates(session)


@requirement("acpx session.prompt.multi_turn: a session accepts consecutive prompts")
async def two_turns(client: Client) -> None:
    session = await client.new()
    for text in ("the first", "the second"):
        before = len(client.received)
        assert (await client.prompt(session, text))["stopReason"] == "end_turn"
        assert client.text(session, since=before).endswith(text)


@requirement("acpx session.cancel.idle: cancelling an idle session has no effect")
async def cancel_idle(client: Client) -> None:
    session = await client.new()
    await client.notify("session/cancel", {"sessionId": session})
    assert (await client.prompt(session, "as ever"))["stopReason"] == "end_turn"


@requirement("acpx errors.invalid_params (cwd_null, prompt_session_type), .unknown_session: invalid params are errors")
async def wrong_params(client: Client) -> None:
    await refused(client, "session/new", {"cwd": None, "mcpServers": []}, -32602)
    await refused(client, "session/new", {"cwd": 1, "mcpServers": []}, -32602)
    await refused(client, "session/prompt", {"sessionId": 42, "prompt": [{"type": "text", "text": "x"}]}, -32602)
    await refused(client, "session/prompt", {"sessionId": await client.new(), "prompt": "x"}, -32602)
    await refused(client, "session/prompt", {"sessionId": "unknown", "prompt": [{"type": "text", "text": "x"}]}, -32002)


@requirement("acpx errors.permission_denied, permissions.approved: a rejected call fails and an allowed call runs")
async def permission(client: Client) -> None:
    for kind, end in (("reject_once", "failed"), ("allow_once", "completed")):
        session, before = await client.new(), len(client.received)
        client.choose = lambda params, kind=kind: _option(params, kind)  # type: ignore[misc]
        assert (await client.prompt(session, "do the work"))["stopReason"] == "end_turn"
        client.choose = None
        requests = [m for m in client.received[before:] if m.get("method") == "session/request_permission"]
        asked = {m["params"]["toolCall"]["toolCallId"] for m in requests}
        # `echo` returns the prompt and has no tools.
        assert bool(asked) == (client.text(session) != "do the work")
        ended = [u for u in client.updates(session, before) if u["sessionUpdate"] == "tool_call_update"]
        ends = {update["toolCallId"]: update["status"] for update in ended}
        assert {ends[call] for call in asked} <= {end}


def _option(params: dict[str, Any], kind: str) -> str:
    return next(str(option["optionId"]) for option in params["options"] if option["kind"] == kind)


ALL_REQUIREMENTS = KIT
"""The requirements of the kit and of this profile."""
