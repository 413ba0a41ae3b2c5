"""The own tools of the real codex in a session: granted, denied and unlisted. A call without a grant does not run."""

from __future__ import annotations

import pytest

from tests.model_server.openai import OpenAIServer
from tests.real.aap_client import calls_of, deny, grant, results_of
from tests.real.codex.aap_client import create_session
from tests.real.codex.conftest import Home
from tests.real.processes import processes_of
from tests.support.daemon import RunningGateway

ASK = {"shell": False, "apply_patch": False}
TRUST = {"shell": True, "apply_patch": True}


async def test_a_trusted_command_that_the_sandbox_stops_has_one_call_and_one_result(portico: RunningGateway) -> None:
    # Of about half of them, which end within some milliseconds, the app-server has no item.
    aap = await create_session(portico.client, "[[run:touch /usr/out.txt]]", own=TRUST)
    for _ in range(5):
        await aap.send("[[run:touch /usr/out.txt]]")
    history = await aap.history()
    calls, results = calls_of(history), results_of(history)
    assert [(call["name"], call["input"]["command"]) for call in calls] == [("shell", "touch /usr/out.txt")] * 6
    assert results.keys() == {call["toolCallId"] for call in calls}
    assert all("Read-only file system" in output for output in results.values())
    decisions = await portico.gateway.store.audit.newest(100, aap.id)
    assert [decision.call_id for decision in decisions] == [call["toolCallId"] for call in calls]


async def test_trusted_tools_stay_in_the_sandbox(home: Home, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.getbasetemp().parent
    async with home.gateway() as running:
        aap = await create_session(running.client, "[[patch:in.txt]]", own=TRUST)
        assert (home.work / "in.txt").exists()
        await aap.send_turn("[[run:touch in2.txt; touch /usr/out.txt]]")
        assert (home.work / "in2.txt").exists()
        await aap.send_turn("[[runoutside:touch /usr/out2.txt]]")
        narrow = await create_session(running.client, "[[run:touch ro.txt]]", own=TRUST, sandbox="read-only")
        await narrow.send_turn("[[runoutside:touch ro.txt]]")
        await narrow.send_turn("[[patch:ro.txt]]")
    assert not (home.work / "ro.txt").exists()
    assert outside.exists()


async def test_a_trusted_shell_is_read_only_if_patches_need_permission(portico: RunningGateway, home: Home) -> None:
    aap = await create_session(portico.client, "[[run:echo hi; touch no.txt]]", own={"shell": True, "apply_patch": False})
    assert not (home.work / "no.txt").exists()
    await aap.send_turn("[[runoutside:touch no.txt]]")
    assert not (home.work / "no.txt").exists()
    answer = await aap.send("[[patch:no.txt]]")
    assert (answer["stopReason"], [c["name"] for c in calls_of(answer["messages"])]) == ("tool_use", ["apply_patch"])
    assert not (home.work / "no.txt").exists()
    await aap.send(deny(calls_of(answer["messages"])[0]))
    assert not (home.work / "no.txt").exists()


async def test_a_command_outside_of_the_sandbox_has_a_reason(portico: RunningGateway) -> None:
    aap = await create_session(portico.client, "[[runoutside:true]]", own=ASK, stop="tool_use")
    assert calls_of(aap.first["messages"])[0]["input"]["reason"] == "it needs to"


async def test_an_untrusted_patch_needs_permission(portico: RunningGateway, home: Home) -> None:
    aap = await create_session(portico.client, "[[patch:one.txt]]", own=ASK, stop="tool_use")
    (call,) = calls_of(aap.first["messages"])
    change = {"path": str(home.work / "one.txt"), "kind": "add", "diff": "written by the model\n"}
    assert (call["name"], call["input"]) == ("apply_patch", {"changes": [change]})
    await aap.send(deny(call))
    assert not (home.work / "one.txt").exists()
    answer = await aap.send("[[patch:two.txt]]")
    answer = await aap.send(grant(calls_of(answer["messages"])[0]))
    assert (home.work / "two.txt").read_text() == "written by the model\n"


async def test_a_trusted_patch_outside_of_the_working_folder_needs_permission(portico: RunningGateway, home: Home) -> None:
    aap = await create_session(portico.client, f"[[patch:{home.base}/out.txt]]", own={"apply_patch": True}, stop="tool_use")
    await aap.send(deny(calls_of(aap.first["messages"])[0]))
    assert not (home.base / "out.txt").exists()


async def test_a_trusted_patch_behind_a_link_to_the_outside_needs_permission(portico: RunningGateway, home: Home) -> None:
    outside = home.base / "outside"
    outside.mkdir()
    (home.work / "link").symlink_to(outside)
    (home.work / "inner").symlink_to(".")
    own = {"apply_patch": True}
    aap = await create_session(portico.client, "[[patch:link/out.txt]]", own=own, stop="tool_use")
    assert not list(outside.iterdir())
    await aap.send(deny(calls_of(aap.first["messages"])[0]))
    assert not list(outside.iterdir())
    answer = await aap.send("[[patch:inner/in.txt]]")
    await aap.send(grant(calls_of(answer["messages"])[0]))
    assert (home.work / "in.txt").exists()


@pytest.mark.parametrize(
    "scenario", ["run:touch made.txt", "runoutside:touch made.txt", "patch:made.txt", "view:made.txt", "run:cat x"]
)
async def test_unlisted_tools_do_not_run(portico: RunningGateway, home: Home, scenario: str) -> None:
    aap = await create_session(portico.client, f"[[{scenario}]]")
    await aap.send_turn(f"[[{scenario}]]", agent={"tools": [{"name": "web_search"}]})
    assert not (home.work / "made.txt").exists()
    other = {"apply_patch": True} if "run" in scenario else {"shell": False}
    await create_session(portico.client, f"[[{scenario}]]", own=other)
    assert not (home.work / "made.txt").exists()


async def test_only_listed_tools_are_sent_to_the_model(home: Home, model: OpenAIServer) -> None:
    config = home.codex / "config.toml"
    config.write_text(config.read_text() + '[mcp_servers.mine]\ncommand = "sleep"\nargs = ["60"]\n')
    async with home.gateway() as running:
        await create_session(running.client, "[[plain]]")
        assert _model_tools(model) == {"request_user_input", "apply_patch"}
        assert not processes_of(home.path, "sleep")
        await create_session(running.client, "[[plain]]", own={"shell": False, "web_search": False, "view_image": False})
        assert _model_tools(model) == {"request_user_input", "apply_patch", "exec_command", "write_stdin"}
        await create_session(running.client, "[[plain]]", own={"web_search": True, "view_image": True})
        assert _model_tools(model) == {"request_user_input", "apply_patch", "web_search", "view_image"}


async def test_rules_files_do_not_answer_permission_requests(home: Home) -> None:
    (home.codex / "rules").mkdir()
    (home.codex / "rules" / "default.rules").write_text('prefix_rule(pattern=["touch"], decision="allow")\n')
    async with home.gateway() as running:
        body = {"agent": {"name": "codex", "tools": [{"name": "shell"}]}, "messages": [{"role": "user", "content": "[[plain]]"}]}
        answer = await running.client.put("/session", json=body)
        assert answer.status_code >= 500 and "default.rules" in answer.text
        await create_session(running.client, "[[run:touch made.txt]]")
        assert not (home.work / "made.txt").exists()
        await create_session(running.client, "[[run:touch made.txt]]", own=ASK, rules="apply")
        assert (home.work / "made.txt").exists()


async def test_the_clis_reviewer_does_not_answer_permission_requests(home: Home) -> None:
    config = home.codex / "config.toml"
    config.write_text('approvals_reviewer = "auto_review"\napproval_policy = "never"\n' + config.read_text())
    async with home.gateway() as running:
        for scenario, own in (("run:touch made.txt", ASK), ("patch:made.txt", {"shell": True, "apply_patch": False})):
            aap = await create_session(running.client, f"[[{scenario}]]", own=own, stop="tool_use")
            assert len(calls_of(aap.first["messages"])) == 1
            assert not (home.work / "made.txt").exists()


def _model_tools(model: OpenAIServer) -> set[str]:
    return {tool.get("name") or tool["type"] for tool in model.bodies()[-1]["tools"]}
