"""A CLI that does not resume its own session: a fresh one is seeded with the history, or the turn fails with the reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.daemon import RunningGateway, gateway_config, run_gateway
from tests.support.manual_clock import ManualClock
from tests.support.programs import write_program
from tests.support.requests import create_session, expect_error, get_history, send_turn, wait_for_probes
from tests.support.waiting import wait_until

CLAUDE = """
import json, os, sys
if "--version" in sys.argv:
    sys.exit(print("2.1.329 (Claude Code)"))
def write(kind, **members): print(json.dumps({"type": kind, **members}), flush=True)
if "--resume" in sys.argv and os.path.exists("refusal"):
    refusals = open("refusal").read().splitlines()
    print(refusals[0], file=sys.stderr)
    if len(refusals) == 1:
        os.remove("refusal")
    sys.exit(1)
request = json.loads(sys.stdin.readline())
write("control_response", response={"subtype": "success", "request_id": request["request_id"]})
for line in sys.stdin:
    prompt = json.loads(line)["message"]["content"]
    home = os.path.join(os.environ["CLAUDE_CONFIG_DIR"], "projects")
    files = [open(os.path.join(folder, name)).read() for folder, _, names in os.walk(home) for name in names]
    seeds = [file for file in files if "one after 0 seeds" in file]
    write("system", subtype="init", session_id="native", model="m")
    write("assistant", message={"id": "a", "content": [{"type": "text", "text": f"{prompt} after {len(seeds)} seeds"}]})
    write("result", subtype="success", is_error=False)
"""
SLEEP_AFTER = 0.7
EISDIR = "Error: EISDIR: illegal operation on a directory, read"


@asynccontextmanager
async def gateway(folder: Path, clock: ManualClock) -> AsyncIterator[RunningGateway]:
    """A gateway with the CLI. Its clock stands still: the check whether the CLI takes a history would be refused, too."""
    program = write_program(folder / "claude", CLAUDE)
    (folder / "work").mkdir()
    env = {"CLAUDE_CONFIG_DIR": str(folder / "config"), "ANTHROPIC_API_KEY": "sk-ant-0123456789"}
    agent = {"driver": "claude", "program": str(program), "cwd": str(folder / "work"), "env": env}
    async with run_gateway(
        gateway_config(folder, agents={"claude": agent}, limits={"sleep_after": SLEEP_AFTER}), clock
    ) as portico:
        # Errors have the version that the probe has found.
        await wait_for_probes(portico.gateway)
        yield portico


async def asleep(portico: RunningGateway, clock: ManualClock) -> None:
    async def no_process() -> bool:
        return not await portico.gateway.store.processes.all()

    await clock.expire_until(wait_until(no_process), SLEEP_AFTER)


def refuse(folder: Path, *lines: str) -> None:
    (folder / "work" / "refusal").write_text("\n".join(lines))


async def test_a_resume_that_is_refused_for_any_reason_is_seeded_instead(tmp_path: Path, clock: ManualClock) -> None:
    async with gateway(tmp_path, clock) as portico:
        answer = await create_session(portico.client, "claude", "one")
        assert answer["messages"][0]["content"] == "one after 0 seeds"
        await asleep(portico, clock)
        refuse(tmp_path, EISDIR)
        answer = await send_turn(portico.client, answer["sessionId"], "two")
        assert answer["messages"][0]["content"] == "two after 1 seeds"


async def test_a_seeded_start_that_fails_is_an_error_with_the_reason(tmp_path: Path, clock: ManualClock) -> None:
    async with gateway(tmp_path, clock) as portico:
        session = (await create_session(portico.client, "claude", "one"))["sessionId"]
        await asleep(portico, clock)
        for reason in (EISDIR, "No conversation found with session ID: x"):
            refuse(tmp_path, reason, "again")
            body = {"messages": [{"role": "user", "content": "two"}]}
            text = await expect_error(portico.client.post(f"/session/{session}", json=body), 503)
            assert "agent 'claude' (2.1.329) cannot start: " in text
        (tmp_path / "work" / "refusal").unlink()
        assert (await send_turn(portico.client, session, "three"))["messages"][0]["content"].startswith("three after")
        contents = [message["content"] for message in await get_history(portico.client, session)]
        assert [content for content in contents if content in ("one", "two", "three")] == ["one", "three"]
