"""What the claude CLI says of itself: whether it is logged in, and which models it offers. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from drivers.lines import parse_object


def logged_in(exit_code: int, printed: str) -> bool | None:
    """Of `claude auth status`: a JSON object with `loggedIn`, exit code 0 or 1."""
    status = parse_object(printed.encode())
    if status is not None and isinstance(status.get("loggedIn"), bool):
        return bool(status["loggedIn"])
    return None if exit_code not in (0, 1) else exit_code == 0


def models(lines: Iterable[str]) -> tuple[str, ...]:
    """Of the answer to `initialize`: the values that `--model` takes."""
    for line in lines:
        answer = parse_object(line.encode())
        if answer is None or answer.get("type") != "control_response":
            continue
        outer = answer.get("response")
        inner = outer.get("response") if isinstance(outer, dict) else None
        offered = inner.get("models") if isinstance(inner, dict) else None
        if not isinstance(offered, list):
            return ()
        return tuple(str(model["value"]) for model in offered if isinstance(model, dict) and model.get("value"))
    return ()
