"""`portico node`: lists the nodes of the cluster, and drains one."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import Any

import click

from gateway.cli.options import CONFIG, DATA_DIR, HOST, PORT, config_errors, load_settings
from gateway.cli.output import say
from gateway.config import Settings
from gateway.diagnosis.daemon import daemon_address
from gateway.errors import ConfigError
from gateway.security.api_keys import default_api_keys
from gateway.terminal_text import json_text, one_line

POLL = 1.0
"""Seconds between two looks at a node that is drained."""
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


_GroupOptions = tuple[Path | None, Path | None]
"""--config and --data-dir of `portico node`: they may stand before the subcommand or after it."""


@click.group()
@CONFIG
@DATA_DIR
@click.pass_context
def node(context: click.Context, config: Path | None, data_dir: Path | None) -> None:
    """List the nodes of the cluster, or drain one. The daemon of the configuration is asked, and must run."""
    context.obj = (config, data_dir)


@node.command("list")
@CONFIG
@DATA_DIR
@HOST
@PORT
@JSON
@click.pass_obj
def list_nodes(
    group: _GroupOptions, config: Path | None, data_dir: Path | None, host: str | None, port: int | None, as_json: bool
) -> None:
    """List the nodes: id, state, address, live agents of how many, sessions, versions, labels. The node that is asked has a *."""
    with config_errors():
        found = _nodes(load_settings(config or group[0], data_dir or group[1], host, port))
    rows = [_row(one) for one in found]
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))] if rows else []
    for one, row in zip(found, rows, strict=True):
        padded = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say(json_text(json.dumps(one, ensure_ascii=False)) if as_json else one_line(padded.rstrip()))


@node.command()
@CONFIG
@DATA_DIR
@HOST
@PORT
@click.option("--no-wait", is_flag=True, help="Do not wait until the node has no sessions any more.")
@click.argument("id", required=False)
@click.pass_obj
def drain(
    group: _GroupOptions,
    config: Path | None,
    data_dir: Path | None,
    host: str | None,
    port: int | None,
    no_wait: bool,
    id: str | None,
) -> None:
    """Have the node ID, or the node of this configuration, take no new work, and wait until its runs have ended.

    Its idle sessions go on at other nodes. Then the node can be stopped; after a restart it takes work again.
    """
    with config_errors():
        settings = load_settings(config or group[0], data_dir or group[1], host, port)
        chosen = id or next((one["id"] for one in _nodes(settings) if one["own"]), "")
        found = _ask(settings, "POST", f"/v1/nodes/{chosen}/drain")
        left = -1
        while not no_wait and found["sessions"] and found["state"] != "silent":
            if found["sessions"] != left:
                left = found["sessions"]
                say(f"{left} sessions or tasks are at work", err=True)
            time.sleep(POLL)
            found = next((one for one in _nodes(settings) if one["id"] == chosen), {**found, "sessions": 0})
        at_work = f", {found['sessions']} sessions or tasks are at work" if found["sessions"] else " and has no sessions"
        say(f"the node {chosen} takes no new work{at_work}")
        if found["worktrees"]:
            say(
                f"the worktrees of {found['worktrees']} sessions are on this node: these sessions go on when it is back, and "
                "requests for them get a 503 until then",
                err=True,
            )


def _nodes(settings: Settings) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _ask(settings, "GET", "/v1/nodes")["nodes"]
    if not found:
        raise ConfigError("this daemon is no node of a cluster: its configuration has no node.address")
    return found


def _ask(settings: Settings, method: str, path: str) -> dict[str, Any]:
    """Return the answer of the daemon. Raises ConfigError that says what to do."""
    address, key = daemon_address(settings), default_api_keys(settings)[0]
    try:
        answer = address.request(method, path, key)
    except (OSError, http.client.HTTPException):
        raise ConfigError(f"no daemon answers at {address.url}: start one by `portico serve`, then try again") from None
    found = answer.object()
    if answer.status != 200:
        raise ConfigError(f"the daemon at {address.url} answers {answer.status}: {found.get('error', 'no reason')}")
    return dict(found)


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    load = f"{one['liveAgents']}/{one['agentSlots']} agents"
    name = one["id"] + (" *" if one["own"] else "")
    return name, one["state"], one["address"], load, f"{one['sessions']} sessions", one["version"], " ".join(one["labels"])
