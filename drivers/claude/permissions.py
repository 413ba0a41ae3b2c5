"""What claude's permission requests suggest, what the client's answers to them mean, and the CLI's own modes. No state.

Shapes as of claude 2.1.329. Which choices the CLI's own interface has is in its documentation, page "Configure permissions".
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from drivers.codecs.question_answers import answers_by_question
from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.driver_info import PermissionMode
from drivers.contract.events import PermissionChoice

AUTO = "autoMode"
"""The id of the CLI's mode `auto`. `auto` is the mode of the gateway in which all tools are trusted."""
BYPASS, PLAN = "bypassPermissions", "plan"
MODES = (
    PermissionMode("default", "Manual", "Asks by the CLI's own rules: the settings, and what it does not consider safe."),
    PermissionMode("acceptEdits", "Accept edits", "As Manual, but edits files in the session's folders without asking."),
    PermissionMode(PLAN, "Plan", "Reads and plans; asks before it edits files, and proposes a plan to be approved."),
    PermissionMode(AUTO, "Auto", "A model decides instead of asking, where the session's model supports that."),
    PermissionMode(BYPASS, "Bypass permissions", "Asks about nothing.", unrestricted=True),
)
NATIVE = {AUTO: "auto"}
"""The CLI's names of modes whose id here is another one."""
IDS = {NATIVE.get(mode.id, mode.id): mode.id for mode in MODES}
"""The ids of modes by the CLI's names."""

PLAN_TOOL, QUESTION_TOOL = "ExitPlanMode", "AskUserQuestion"
KEEP_PLANNING = "keep_planning"
PATHS = ("file_path", "path", "notebook_path")
_WHERE = {"localSettings": "in this project", "projectSettings": "in this project", "userSettings": "in every project"}
_SETTINGS = {"userSettings": "user", "projectSettings": "project", "localSettings": "local"}
_AFTER_PLAN = {
    BYPASS: "Yes, and bypass permissions",
    AUTO: "Yes, and use auto mode",
    "acceptEdits": "Yes, and accept edits",
    "default": "Yes, manually approve edits",
}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A choice for the client, and the permission updates that the CLI gets when it is chosen."""

    choice: PermissionChoice
    updates: tuple[Json, ...] = ()


def suggestions_of(request: Mapping[str, Any], modes: frozenset[str], sources: Iterable[str]) -> list[Suggestion]:
    """Return the choices for a permission request, narrow ones first.

    Parameters:
        request: A `can_use_tool` request.
        modes: The modes that the session may have.
        sources: Which settings files may be changed (`user`, `project`, `local`). A rule for another one holds for the session.
    """
    if request["tool_name"] == PLAN_TOOL:
        return _after_plan(modes)
    updates = [update for update in request.get("permission_suggestions") or () if isinstance(update, dict)]
    found: list[Suggestion] = []
    if not (request.get("matched_ask_rule") or request.get("suppress_always_allow_rule")):
        found += _rules(updates, tuple(sources))
    for update in updates:
        if update.get("type") == "setMode" and (mode := IDS.get(str(update.get("mode")), "")) in modes and not _is_bypass(mode):
            name = "Accept all edits in this session" if mode == "acceptEdits" else f"Switch to the mode {mode}"
            found.append(Suggestion(PermissionChoice(id=f"mode:{mode}", name=name, kind="allow_always"), (_set_mode(mode),)))
    return found


def _rules(updates: list[Json], sources: tuple[str, ...]) -> list[Suggestion]:
    """Return the choices that add a rule, one for each of the suggestions."""
    found: list[Suggestion] = []
    for n, update in enumerate(updates):
        if update.get("type") == "addRules" and update.get("behavior") == "allow" and update.get("rules"):
            names = ", ".join(_rule_name(rule) for rule in update["rules"])
            destination = update.get("destination")
            if _SETTINGS.get(str(destination)) not in sources:
                destination = "session"
            name = f"Always allow {names} {_WHERE.get(str(destination), 'in this session')}"
            applied = ({**update, "destination": destination},)
            found.append(Suggestion(PermissionChoice(id=f"rule:{n}", name=name, kind="allow_always"), applied))
        elif update.get("type") == "addDirectories" and update.get("directories"):
            name = f"Allow the folder {', '.join(map(str, update['directories']))} in this session"
            applied = ({**update, "destination": "session"},)
            found.append(Suggestion(PermissionChoice(id=f"folder:{n}", name=name, kind="allow_always"), applied))
    return found


def _after_plan(modes: frozenset[str]) -> list[Suggestion]:
    approvals = [
        Suggestion(
            PermissionChoice(id=f"mode:{mode}", name=name, kind="allow_once" if mode == "default" else "allow_always"),
            (_set_mode(mode),),
        )
        for mode, name in _AFTER_PLAN.items()
        if mode in modes
    ]
    return [*approvals, Suggestion(PermissionChoice(id=KEEP_PLANNING, name="No, keep planning", kind="reject_once"))]


def _set_mode(mode: str) -> Json:
    return {"type": "setMode", "mode": NATIVE.get(mode, mode), "destination": "session"}


def _is_bypass(mode: str) -> bool:
    return mode == BYPASS


def _rule_name(rule: Mapping[str, Any]) -> str:
    content = rule.get("ruleContent")
    return f"{rule.get('toolName')}({content})" if content else str(rule.get("toolName"))


def answered_input(given: Mapping[str, Any], reply: Reply) -> Json:
    """Return the input of AskUserQuestion with the client's answers, by which the CLI makes the tool's result.

    A grant without answers skips the questions.
    """
    questions = (str(question["question"]) for question in questions_of(given))
    answers = answers_by_question(reply.content, questions) if isinstance(reply, ToolReply) else {}
    return {**given, "answers": {str(question): _answer(answer) for question, answer in answers.items()}}


def _answer(answer: Any) -> str:
    """Return an answer as the CLI's own interface writes it: several are joined by commas, and quoted where they have one."""
    if isinstance(answer, list):
        return ", ".join(json.dumps(one) if ", " in one or '"' in one else one for one in map(str, answer))
    return str(answer)


def questions_of(given: Any) -> list[Json]:
    """Return the questions in the input of AskUserQuestion."""
    listed = given.get("questions") if isinstance(given, dict) else None
    return [one for one in listed if isinstance(one, dict) and one.get("question")] if isinstance(listed, list) else []


def updates_of(suggestions: Iterable[Suggestion], reply: Reply | None) -> tuple[Json, ...]:
    """Return the permission updates of the choice in a reply."""
    choice = reply.choice if isinstance(reply, PermissionReply) else None
    return next((suggestion.updates for suggestion in suggestions if suggestion.choice.id == choice), ())


def is_same_input(before: Any, after: Any, folder: str) -> bool:
    """Whether the input of a permission request is that of the model's call.

    The CLI makes paths absolute, by the working folder `folder` of its session, and leaves out, or adds, values that are false or
    empty.
    """
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return bool(before == after)
    return all(_is_same_value(name, before.get(name), after.get(name), folder) for name in {*before, *after})


def _is_same_value(name: str, before: Any, after: Any, folder: str) -> bool:
    if before == after or not (before or after):
        return True
    if name in PATHS and isinstance(before, str) and isinstance(after, str) and ".." not in before:
        return after == posixpath.normpath(posixpath.join(folder, before))
    return False
