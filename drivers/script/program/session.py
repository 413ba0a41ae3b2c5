"""The two forms of the player: a session of many prompts, and a task of one."""

from __future__ import annotations

from .play import Play, TurnOver
from .scenario import Scenario
from .steps import play_steps
from .wire import InputEnded, Interrupted, Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REFUSED, CANCELLED = 2, 130
PACES = ("recorded", "fast")
DEMO = {
    "turns": [
        {
            "steps": [
                {"thinking": {"text": "The user wrote something; I say it back, word by word.", "chunk": 12, "every": 0.02}},
                {"text": {"text": "You said: {prompt}\n\n", "chunk": 40, "every": 0.02}},
                {"text": {"text": "This is turn {turn} of the built-in scenario. ", "chunk": 6, "every": 0.02}},
                {"text": {"text": "Write your own: docs/script-driver.md.", "chunk": 6, "every": 0.02}},
                {"usage": {"input_tokens": 12, "output_tokens": 34}},
            ]
        }
    ]
}


class Refused(Exception):
    """The session cannot be played. The text is the reason."""


def main(*, once: bool) -> int:
    """Play until the end of input, or one task. The exit code."""
    wire = Wire(once=once)
    try:
        return _serve(wire, once)
    except Refused as error:
        wire.complain(str(error))
        return REFUSED
    except ValueError as error:
        wire.complain(f"a request is not JSON: {error}")
        return REFUSED
    except InputEnded:
        return 0
    except BrokenPipeError:
        return 1


def _serve(wire: Wire, once: bool) -> int:
    opened = wire.next_request()
    if opened is None:
        return 0
    if opened.get("type") != "open":
        raise Refused(f"the first request must be open, not {opened.get('type')}")
    options = opened.get("options") or {}
    if options.get("pace", "recorded") not in PACES:
        raise Refused(f"the option pace must be one of {', '.join(PACES)}, not {options['pace']!r}")
    scenario = Scenario(opened.get("scenario") or DEMO)
    play = Play(wire, opened, scenario.model)
    try:
        play_steps(play, scenario.start)
    except TurnOver as over:
        raise Refused(f"start: {over.message}") from None
    wire.emit("native_session", model=play.model)
    code = 0
    while (request := wire.next_request()) is not None:
        if request.get("type") == "prompt":
            code = _answer(play, scenario, request)
            if once:
                return code
    return code if once else 0


def _answer(play: Play, scenario: Scenario, request: dict[str, Any]) -> int:
    play.begin(request.get("content", ""), go_on=bool(request.get("go_on")))
    reason, code, message = "end_turn", 0, None
    turn = scenario.turn_for(play.texts)
    try:
        if turn is None:
            raise TurnOver("error", "no turn of the scenario is for this prompt; add one without `when`")
        play_steps(play, turn.steps)
    except TurnOver as over:
        reason, message = over.reason, over.message
        code = 1 if reason == "error" else 0
    except Interrupted:
        reason, code = "cancelled", CANCELLED
    if message:
        play.wire.emit("error", message=message)
    play.wire.emit("session_end", exit_code=code, stop_reason=reason)
    play.wire.flush()
    return code
