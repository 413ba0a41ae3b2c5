"""Patches of the real codex while a process swaps a folder of their path with a link: nothing is written outside."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.real.aap_client import AapSession, calls_of, deny, grant, results_of, user
from tests.real.codex.aap_client import create_session
from tests.real.codex.conftest import Home, needs_sandbox
from tests.support.daemon import RunningGateway
from tests.support.swapped_folders import swapped

PATCHES = 16
"""Patches of a race. Without a sandbox of the kernel 13 of 32 accepted patches were written outside (codex 0.169.0)."""

MOST_PATCHES = 8 * PATCHES
"""Where none was written into the folder, a race has more patches, up to this many: a run was seen where all 16 were refused."""


async def answered(aap: AapSession, answer: dict[str, Any], *, granted: bool) -> dict[str, Any]:
    """The end of a turn whose questions are all answered in the same way."""
    while answer["stopReason"] == "tool_use":
        reply = grant if granted else deny
        answer = await aap.send(*(reply(call) for call in calls_of(answer["messages"])))
    return answer


@pytest.mark.parametrize(
    ("own", "sandbox"),
    [
        pytest.param({"apply_patch": True, "shell": False}, True, id="sandbox of the gateway", marks=needs_sandbox),
        pytest.param({"apply_patch": True, "shell": True}, False, id="both trusted, sandbox of codex"),
    ],
)
async def test_no_trusted_patch_is_written_outside_in_a_race(home: Home, own: dict[str, bool], sandbox: bool) -> None:
    sub, outside = home.work / "sub", home.base / "outside"
    sub.mkdir()
    outside.mkdir()
    if sandbox:
        home.use_sandbox()
    else:
        # Commands may write in /tmp, where the test is.
        config = home.codex / "config.toml"
        config.write_text(config.read_text() + "[sandbox_workspace_write]\nexclude_slash_tmp = true\n")
    async with home.gateway() as running:
        aap = await create_session(running.client, "[[plain]]", own=own)
        with swapped(sub, outside):
            for n in range(MOST_PATCHES):
                await answered(aap, await aap.send(user(f"[[patch:sub/{n}.txt]]")), granted=False)
                if n + 1 >= PATCHES and any(home.work.rglob("*.txt")):
                    break
    assert list(outside.iterdir()) == []
    assert any(home.work.rglob("*.txt"))


@pytest.mark.parametrize("own", [{"apply_patch": True}, {"apply_patch": True, "shell": False}])
async def test_without_a_sandbox_every_trusted_patch_is_asked_about(
    portico: RunningGateway, home: Home, own: dict[str, bool]
) -> None:
    aap = await create_session(portico.client, "[[patch:one.txt]]", own=own, stop="tool_use")
    (call,) = calls_of(aap.first["messages"])
    assert not (home.work / "one.txt").exists()
    assert 'sandbox = "workspace-write"' in call["input"]["reason"]
    await aap.send(grant(call))
    assert (home.work / "one.txt").exists()


async def test_a_link_that_appears_after_the_question_declines_the_patch(portico: RunningGateway, home: Home) -> None:
    (home.work / "sub").mkdir()
    outside = home.base / "outside"
    outside.mkdir()
    own = {"apply_patch": True, "shell": False}
    aap = await create_session(portico.client, "[[patch:sub/one.txt]]", own=own, stop="tool_use")
    (call,) = calls_of(aap.first["messages"])
    (home.work / "sub").rmdir()
    (home.work / "sub").symlink_to(outside)
    answer = await aap.send(grant(call))
    assert "since the question" in results_of(answer["messages"])[call["toolCallId"]]
    assert list(outside.iterdir()) == []


async def test_a_rule_does_not_allow_a_patch_without_a_sandbox(home: Home) -> None:
    home.agent["policy"] = [{"tool": "apply_patch", "when": {"changes.path": f"{home.work}/*"}, "decide": "allow"}]
    async with home.gateway() as running:
        own = {"apply_patch": False, "shell": False}
        aap = await create_session(running.client, "[[patch:one.txt]]", own=own, stop="tool_use")
        await aap.send(deny(calls_of(aap.first["messages"])[0]))
    assert not (home.work / "one.txt").exists()


@needs_sandbox
async def test_codex_works_in_the_sandbox_of_the_gateway(home: Home, tmp_path: Path) -> None:
    home.use_sandbox()
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(home.gateway())
        trusted = {"apply_patch": True, "shell": True}
        aap = await create_session(running.client, f"[[run:touch in.txt; touch {outside}/a]]", own=trusted)
        await aap.send_turn("[[patch:patched.txt]]")
        await aap.send_turn(f"[[patch:{outside}/b]]")
        assert (home.work / "in.txt").exists() and (home.work / "patched.txt").exists()
        # The policy still sees each command and patch that is not trusted.
        for own in ({"apply_patch": True, "shell": False}, {"apply_patch": False, "shell": True}):
            aap = await create_session(running.client, "[[plain]]", own=own)
            scenario, made = ("patch:p-{}", "run:touch r-{}") if own["apply_patch"] else ("run:touch r-{}", "patch:p-{}")
            name = "a" if own["apply_patch"] else "b"
            await aap.send_turn(f"[[{scenario.format(name)}]]")
            answer = await aap.send(f"[[{made.format(name)}]]")
            assert answer["stopReason"] == "tool_use"
            await answered(aap, answer, granted=True)
            assert (home.work / f"p-{name}").exists() and (home.work / f"r-{name}").exists()
        aap = await create_session(
            running.client, f"[[patch:{outside}/c]]", own={"apply_patch": True, "shell": False}, stop="tool_use"
        )
        await answered(aap, aap.first, granted=True)
    assert list(outside.iterdir()) == []
