"""Tool calls of a scenario: started, asked about where they must be, and brought to their end."""

from __future__ import annotations

from .client import ask_client
from .files import write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .play import Play
    from .scenario import Fields, Step

OWN_TOOLS = frozenset({"lookup", "write_note", "shell"})
"""The tools of drivers/script/driver.py; they run only if the session enables them. A scenario may make up others."""
AGAIN = "Make the same call again"
"""What the gateway writes as the result of a call that was granted but could not run."""


class Call:
    """A started call. `wants` is what it waits for, `refusal` why it cannot be made at all."""

    def __init__(self, play: Play, kind: str, fields: Fields) -> None:
        self.name: str = fields["name"]
        self.fields = fields
        self.id = play.fill(fields["id"]) if "id" in fields else play.new_id("call")
        self.key: str = fields.get("id", self.id)
        self.refusal = _refusal(play, kind, fields)
        asks = fields.get("ask") or fields.get("choices") or play.trusted.get(self.name) is False
        wants = "result" if kind == "app_tool" else "answer" if fields.get("question") else "permission" if asks else None
        self.wants = None if self.refusal else wants
        self.parent = play.parent


def play_calls(play: Play, steps: list[Step]) -> None:
    """Start all calls, end those that wait for no reply, then ask the client about all others at once."""
    made = [call for step in steps for call in step.items()]
    begun = [_go_on(play, kind, fields) if play.earlier else _start(play, kind, fields) for kind, fields in made]
    calls = [call for call in begun if call is not None]
    for call in calls:
        if call.wants is None:
            _run(play, call)
    asked = [call for call in calls if call.wants]
    if not asked:
        return
    play.wire.emit("awaiting", calls=[_awaited(play, call) for call in asked])
    for call, reply in zip(asked, play.wire.replies(call.id for call in asked), strict=True):
        _resolve(play, call, reply)


def _awaited(play: Play, call: Call) -> dict[str, Any]:
    choices = play.fill_all(call.fields.get("choices", []))
    return {"id": call.id, "wants": call.wants, **({"choices": choices} if choices else {})}


def _refusal(play: Play, kind: str, fields: Fields) -> str | None:
    name = fields["name"]
    if kind == "app_tool":
        return None if name in play.app_tools else f"The application has no tool {name}."
    if name in OWN_TOOLS and name not in play.trusted:
        return f"The tool {name} is not enabled in this session."
    if (fields.get("ask") or fields.get("choices")) and play.wire.once:
        return "Tool call denied: a one-shot task cannot ask for permission."
    if fields.get("question") and play.wire.once:
        return "Tool call denied: a one-shot task has no user to ask."
    return None


def _go_on(play: Play, kind: str, fields: Fields) -> Call | None:
    """A call that an earlier process has made; it is repeated only if its result requires it."""
    earlier, result = play.earlier.pop(0)
    while AGAIN in result and (later := [made for made in play.earlier if made[0] == f"{earlier}_again"]):
        play.earlier.remove(later[0])
        earlier, result = later[0]
    call = Call(play, kind, fields)
    play.keep_result(call.key, result)
    if AGAIN not in result:
        return None
    call.id = f"{earlier}_again"
    return _say_started(play, call)


def _start(play: Play, kind: str, fields: Fields) -> Call:
    return _say_started(play, Call(play, kind, fields))


def _say_started(play: Play, call: Call) -> Call:
    fields = call.fields
    detail = play.fill(fields["detail"]) if "detail" in fields else None
    given = play.fill_all(fields.get("input", {}))
    play.wire.emit("tool_call", id=call.id, name=call.name, status="started", detail=detail, input=given, parent_id=call.parent)
    return call


def _resolve(play: Play, call: Call, reply: dict[str, Any]) -> None:
    play.choices[call.key] = reply.get("choice") or ""
    if reply.get("granted") is False:
        reason = reply.get("reason")
        return _end(play, call, f"Tool call denied: {reason}" if reason else "Tool call denied", failed=True)
    if call.wants == "permission":
        return _run(play, call)
    # The client knows the result that it sent; only the end of the call is sent.
    play.keep_result(call.key, reply.get("content", ""))
    _close(play, call, "completed")


def _run(play: Play, call: Call) -> None:
    if call.refusal:
        return _end(play, call, call.refusal, failed=True)
    play.pause(call.fields.get("takes", 0.0))
    if "write_file" in call.fields:
        write_file(play, call.fields["write_file"])
    if "client" in call.fields:
        output, failed = ask_client(play, call.id, call.fields["client"])
        return _end(play, call, output, failed=failed)
    if "error" in call.fields:
        return _end(play, call, play.fill(call.fields["error"]), failed=True)
    _end(play, call, play.fill_all(call.fields.get("result", "done")), failed=False)


def _end(play: Play, call: Call, output: Any, *, failed: bool) -> None:
    play.keep_result(call.key, output)
    play.wire.emit("tool_result", tool_call_id=call.id, output=output, is_error=failed)
    _close(play, call, "failed" if failed else "completed")


def _close(play: Play, call: Call, status: str) -> None:
    play.wire.emit("tool_call", id=call.id, name=call.name, status=status, parent_id=call.parent)
