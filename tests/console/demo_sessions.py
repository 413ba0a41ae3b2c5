"""A daemon with sessions as in daily work, of every kind of content: for screenshots, and for checks of every page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.console.console_daemon import ConsoleDaemon

BEFORE = """def total(items):
    sum = 0
    for item in items:
        sum += item.price
    return sum
"""
AFTER = """def total(items, discount=Decimal(0)):
    \"\"\"Return the price of all items, in cents.\"\"\"
    subtotal = sum(item.price * item.quantity for item in items)
    return subtotal - (subtotal * discount).quantize(Decimal(1))
"""
ANSWER = """The test failed because `total` ignored the **quantity** of an item. It is mended:

| case | before | now |
|---|---:|---:|
| one item | 1200 | 1200 |
| three of one item | 1200 | 3600 |

```python
def test_quantity_counts():
    assert total([Item(price=1200, quantity=3)]) == 3600
```

1. The discount is rounded to whole cents.
2. Nothing else of the module's interface has changed: see [the issue](https://example.org/shop/issues/12).
"""
OUTPUT = """\x1b[1m============ test session starts ============\x1b[0m
collected 14 items

tests/test_checkout.py \x1b[32m............\x1b[0m
tests/test_prices.py \x1b[32m..\x1b[0m

\x1b[32m============ 14 passed in 0.42s ============\x1b[0m
"""
RULES = [
    {"tool": "Bash", "when": {"command": "git status *"}, "decide": "allow"},
    {"tool": "Bash", "when": {"command": "rm *"}, "decide": "deny", "reason": "Move files to the folder trash."},
    {"tool": "WebFetch", "decide": "ask"},
]


def demo_daemon(folder: Path) -> ConsoleDaemon:
    """Return a daemon, not started yet, with the agents `builder` and `reviewer`, and rules."""
    projects = folder / "projects"
    for name in ("shop", "website"):
        (projects / name).mkdir(parents=True, exist_ok=True)
    agents: dict[str, Any] = {
        "builder": {"driver": "script", "cwd": str(projects / "shop"), "title": "Builder", "policy": RULES},
        "reviewer": {"driver": "script", "cwd": str(projects / "website"), "title": "Reviewer"},
    }
    return ConsoleDaemon(folder, agents=agents)


def demo_sessions(daemon: ConsoleDaemon) -> dict[str, str]:
    """Begin the sessions, and return their ids: `done`, `waiting`, `question`, `failed`, `running`, `review`.

    There are two named keys then.
    """
    for name in ("phone", "editor"):
        daemon.api.post("/v1/keys", json={"name": name}).raise_for_status()
    made = {
        "review": _session(daemon, "reviewer", "Review the new landing page", _review()),
        "failed": _session(daemon, "reviewer", "Translate the imprint into Dutch", _failed()),
        "done": _session(
            daemon, "builder", "The checkout test fails since yesterday. Find out why, and mend it.", _done(), _further()
        ),
        "question": _session(daemon, "builder", "Add an export of all orders", _question()),
        "waiting": _session(daemon, "builder", "Publish version 2.4 of the shop", _waiting()),
        "running": _session(daemon, "builder", "Upgrade the payment library to version 5", _running(), wait=False),
    }
    daemon.send(made["done"], "Thanks! Is the discount tested as well?")
    return made


def _session(daemon: ConsoleDaemon, agent: str, prompt: str, *turns: Any, wait: bool = True) -> str:
    folder = daemon.folder / "projects" / ("shop" if agent == "builder" else "website")
    session = daemon.new_session(*turns, agent=agent, scenes=folder)
    daemon.send(session, prompt, wait=wait)
    return session


def _call(name: str, given: dict[str, Any], result: Any = "done", **fields: Any) -> dict[str, Any]:
    return {"tool_call": {"name": name, "input": given, "result": result, **fields}}


def _done() -> list[Any]:
    plan = ["Read the failing test", "Mend the function", "Run all tests"]
    return [
        {"title": "Mend the checkout test"},
        {"thinking": "The failure is in the sum. The test expects that the quantity of each item counts."},
        {"text": "I look at the test and at the function that it calls."},
        {"plan": [{"content": text, "status": "completed"} for text in plan]},
        _call("Read", {"file_path": "src/prices.py"}, BEFORE),
        _call("Grep", {"pattern": "total\\(", "path": "src"}, "src/prices.py:1\nsrc/checkout.py:18\nsrc/invoice.py:44"),
        {"text": "`total` never reads `quantity`."},
        _call("Edit", {"file_path": "src/prices.py", "old_string": BEFORE, "new_string": AFTER}),
        _call("Bash", {"command": "python -m pytest -q tests", "description": "Run the tests"}, OUTPUT),
        {
            "subagent": {
                "label": "Look for other users of total()",
                "steps": [
                    _call("Read", {"file_path": "src/invoice.py"}, "…"),
                    _call("Read", {"file_path": "src/checkout.py"}, "…"),
                ],
            }
        },
        {"text": ANSWER},
        {"usage": {"input_tokens": 18_240, "output_tokens": 1_320, "cache_read": 12_000, "cost_usd": 0.084}},
    ]


def _further() -> list[Any]:
    return [
        {"text": "Yes: `test_discount_is_rounded` has three cases, one of them with half a cent."},
        {"usage": {"input_tokens": 19_800, "output_tokens": 60, "cache_read": 18_000, "cost_usd": 0.012}},
    ]


def _review() -> list[Any]:
    return [
        {"title": "Review of the landing page"},
        {"text": "The page is **fine**. Remarks:\n\n- the image has no alternative text\n- the heading jumps from h1 to h3\n"
                 "- `main.css` is loaded twice"},
        {"usage": {"input_tokens": 9_100, "output_tokens": 240, "cost_usd": 0.021}},
    ]  # fmt: skip


def _failed() -> list[Any]:
    return [
        {"title": "Dutch imprint"},
        {"text": "I begin with the first section."},
        {"stop": {"reason": "error", "message": "429: the model is overloaded, try again in a few minutes"}},
    ]


def _waiting() -> list[Any]:
    choices = [{"id": "push", "name": "Always allow git push in this project", "kind": "allow_always"}]
    command = "git tag v2.4.0 && git push origin main --tags"
    return [
        {"title": "Publish version 2.4"},
        {"text": "All tests pass, and the changelog is complete. I tag the version and push it."},
        _call("Bash", {"command": command, "description": "Tag and push"}, ask=True, choices=choices),
        {"text": "Version 2.4 is published."},
    ]


def _question() -> list[Any]:
    options = [
        {"label": "CSV", "description": "Opens in every spreadsheet"},
        {"label": "JSON", "description": "Keeps the structure of the items"},
    ]
    asked = {"question": "Which format should the export have?", "header": "Format", "multiSelect": False, "options": options}
    return [
        {"title": "Export of orders"},
        {"text": "Before I begin I need to know the format."},
        {"tool_call": {"name": "AskUserQuestion", "input": {"questions": [asked]}, "question": True}},
        {"text": "Good: {last_result}"},
    ]


def _running() -> list[Any]:
    states = ["completed", "in_progress", "pending", "pending"]
    texts = ["Read the migration guide", "Replace removed calls", "Run the tests", "Update the changelog"]
    return [
        {"title": "Payment library 5"},
        {"plan": [{"content": text, "status": status} for text, status in zip(texts, states, strict=True)]},
        {"text": "The migration guide names four calls that were removed. I replace them one by one."},
        _call("Bash", {"command": "pip install 'payments>=5,<6'"}, "Successfully installed payments-5.1.0"),
        {"text": "`charge()` is now `create_charge()`, with the amount in cents"},
        {"wait_for_file": "never"},
    ]
