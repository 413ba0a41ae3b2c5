"""What must hold after the soak of a cluster: what the clients saw, what the agents were given, and what is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults import oracles
from tests.faults.cluster.clients import prompt_of
from tests.support.sse import NumberedEvent as Frame


@dataclass
class Checks:
    """Violations by what was checked, and how much of it was."""

    checked: Counter[str] = field(default_factory=Counter)
    problems: dict[str, list[str]] = field(default_factory=dict)

    def add(self, what: str, checked: int, problems: Sequence[str]) -> None:
        self.checked[what] += checked
        self.problems.setdefault(what, []).extend(problems)

    @property
    def ok(self) -> bool:
        return not any(self.problems.values())

    def table(self) -> str:
        rows = [f"| {what} | {count} | {len(self.problems[what])} |" for what, count in self.checked.items()]
        return "\n".join(["| check | checked | violations |", "|---|---:|---:|", *rows])

    # -- one session --------------------------------------------------------------------------------------------------

    def seen(self, who: str, seen: Sequence[Frame], replayed: Sequence[Frame], *, messages: bool) -> None:
        """A client has seen every event of the log once and in order. `messages`: those of clients too."""
        hidden = {"gap"} if messages else {"gap", "client_message"}
        mine = [frame for frame in seen if frame[1] not in hidden]
        theirs = [frame for frame in replayed if frame[1] not in hidden]
        numbers = {number for number, _, _ in mine}
        missing = [number for number, _, _ in theirs if number not in numbers]
        self.add("events lost", len(theirs), [f"{who}: {len(missing)} events, such as {missing[:4]}"] if missing else [])
        self.add("events doubled or out of order", len(mine), [f"{who}: {text}" for text in oracles.numbers_increase(mine)])
        wrong = oracles.seen_in_log(mine, replayed)
        self.add("events that are neither stored nor in a gap", len(mine), [f"{who}: {text[:300]}" for text in wrong])

    def turns(self, who: str, sent: Sequence[str], replayed: Sequence[Frame], count: int) -> dict[str, str]:
        """Each prompt is in the log once, with one end, and with its own texts in order. Return the ends by prompt."""
        prompts: list[str] = []
        text, stops, ends, problems = "", 0, {}, []
        for number, name, data in replayed:
            if name == "client_message" and (found := prompt_of(data)):
                prompts.append(found)
                text, stops = "", 0
            elif name == "text_delta":
                if stops:
                    problems.append(f"{who}: text {number} of {prompts[-1:]} comes after its end")
                text += data["delta"]
            elif name == "turn_stop":
                if data["stopReason"] == "tool_use":
                    continue
                stops += 1
                over = data["stopReason"] == "end_turn"
                ends[prompts[-1]] = data["stopReason"]
                whole = over and "<go-on:" not in text
                text = text.replace("<go-on:0>", "")
                problems += [f"{who}: {line}" for line in oracles.answers_only(prompts[-1], text, count if whole else None)]
                if stops > 1:
                    problems.append(f"{who}: {prompts[-1]} has {stops} ends")
        self.add("texts of turns", len(ends), problems)
        lost = [f"{who}: {name} is {prompts.count(name)} times in the log" for name in sent if prompts.count(name) != 1]
        self.add("prompts sent that are not stored once", len(sent), lost)
        self.add("turns without an end", len(prompts), [f"{who}: {name}" for name in prompts if name not in ends])
        return ends

    # -- all of them --------------------------------------------------------------------------------------------------

    def given(self, given: Sequence[Mapping[str, Any]], ends: Mapping[str, str]) -> None:
        """No agent got a prompt twice, one that is not stored, or none although the turn is complete."""
        prompts = [entry["id"] for entry in given if entry["type"] in ("prompt", "steer") and not entry["go_on"]]
        replies = Counter(entry["id"] for entry in given if entry["type"] == "reply")
        self.add("prompts given twice", len(prompts), oracles.given_once(given))
        self.add("answers given twice", replies.total(), [f"{name}: {count}" for name, count in replies.items() if count > 1])
        self.add("prompts given that are not stored", len(prompts), sorted(set(prompts) - set(ends)))
        complete = [name for name, reason in ends.items() if reason == "end_turn"]
        self.add("complete turns whose prompt was not given", len(complete), sorted(set(complete) - set(prompts)))
