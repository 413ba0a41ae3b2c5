"""The real codex' own tools in a session: granted, denied, not listed. What was not granted did not run."""

from __future__ import annotations

import pytest

from tests.daemon import Running
from tests.model_server.openai import OpenAIServer
from tests.real.codex.conftest import Home
from tests.real.codex.talk import begin, calls_of, deny, grant, outputs, received_text, results_of, text_of
from tests.real.processes import of_home

ASK = {"shell": False, "apply_patch": False}
TRUST = {"shell": True, "apply_patch": True}


async def test_a_trusted_command_runs_inline(portico: Running) -> None:
    talk = await begin(portico.client, "[[shell]]", own=TRUST)
    (call,) = calls_of(talk.first["messages"])
    assert (call["name"], call["input"]["command"]) == ("shell", "ls -a; echo hi")
    assert results_of(talk.first["messages"])[call["toolCallId"]].endswith("hi\n")
    assert [m["role"] for m in talk.first["messages"]] == ["assistant", "tool", "assistant"]
    assert text_of(talk.first["messages"]) == "Listing. The files are listed."


async def test_a_trusted_command_that_fails(portico: Running) -> None:
    talk = await begin(portico.client, "[[toolfail]]", own=TRUST)
    (output,) = results_of(talk.first["messages"]).values()
    assert "No such file" in output and output.endswith("[exit code 3]")


async def test_trusted_commands_in_parallel(portico: Running) -> None:
    talk = await begin(portico.client, "[[parallel]]", own=TRUST)
    assert len(calls_of(talk.first["messages"])) == 3
    assert sorted(results_of(talk.first["messages"]).values()) == ["one\n", "three\n", "two\n"]


async def test_a_result_of_a_megabyte(portico: Running) -> None:
    talk = await begin(portico.client, "[[bigshell]]", own=TRUST)
    (output,) = results_of(talk.first["messages"]).values()
    assert output.rstrip("\n") == "A" * 1_000_000


async def test_what_is_trusted_stays_in_the_sandbox(home: Home, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.getbasetemp().parent
    async with home.gateway() as running:
        talk = await begin(running.client, "[[patch:in.txt]]", own=TRUST)
        assert (home.work / "in.txt").exists()
        await talk.send_turn("[[run:touch in2.txt; touch /usr/out.txt]]")
        assert (home.work / "in2.txt").exists()
        await talk.send_turn("[[runoutside:touch /usr/out2.txt]]")
        narrow = await begin(running.client, "[[run:touch ro.txt]]", own=TRUST, sandbox="read-only")
        await narrow.send_turn("[[runoutside:touch ro.txt]]")
        await narrow.send_turn("[[patch:ro.txt]]")
    assert not (home.work / "ro.txt").exists()
    assert outside.exists()


async def test_a_trusted_shell_beside_patches_that_are_asked_for_only_reads(portico: Running, home: Home) -> None:
    talk = await begin(portico.client, "[[run:echo hi; touch no.txt]]", own={"shell": True, "apply_patch": False})
    assert not (home.work / "no.txt").exists()
    await talk.send_turn("[[runoutside:touch no.txt]]")
    assert not (home.work / "no.txt").exists()
    answer = await talk.send("[[patch:no.txt]]")
    assert (answer["stopReason"], [c["name"] for c in calls_of(answer["messages"])]) == ("tool_use", ["apply_patch"])
    assert not (home.work / "no.txt").exists()
    await talk.send(deny(calls_of(answer["messages"])[0]))
    assert not (home.work / "no.txt").exists()


@pytest.mark.parametrize("command", ["touch made.txt", "ls", "cat made.txt", "pwd", "echo hi > made.txt"])
async def test_every_command_is_asked_for(portico: Running, home: Home, command: str) -> None:
    talk = await begin(portico.client, f"[[run:{command}]]", own=ASK, stop="tool_use")
    (call,) = calls_of(talk.first["messages"])
    assert (call["name"], call["input"]["command"], call["input"]["cwd"]) == ("shell", command, str(home.work))
    assert not (home.work / "made.txt").exists()
    answer = await talk.send(grant(call))
    assert answer["stopReason"] == "end_turn"
    assert [m["role"] for m in answer["messages"]] == ["tool", "assistant"]
    assert (home.work / "made.txt").exists() == ("made" in command and "cat" not in command)


async def test_a_denied_command_did_not_run_and_the_model_is_told_why(portico: Running, home: Home, model: OpenAIServer) -> None:
    talk = await begin(portico.client, "[[run:touch made.txt]]", own=ASK, stop="tool_use")
    (call,) = calls_of(talk.first["messages"])
    answer = await talk.send(deny(call, "too risky"))
    assert not (home.work / "made.txt").exists()
    assert results_of(answer["messages"]) == {call["toolCallId"]: "Tool call denied: too risky"}
    assert (answer["stopReason"], "rejected" in str(outputs(model.bodies()[-1]))) == ("end_turn", True)
    assert "The call of shell was denied: too risky" in received_text(model.bodies()[-1])
    assert [m["role"] for m in await talk.history()] == ["user", "assistant", "tool", "assistant"]


async def test_a_command_that_wants_out_of_the_sandbox_says_why(portico: Running) -> None:
    talk = await begin(portico.client, "[[runoutside:true]]", own=ASK, stop="tool_use")
    assert calls_of(talk.first["messages"])[0]["input"]["reason"] == "it needs to"


async def test_a_patch_is_asked_for(portico: Running, home: Home) -> None:
    talk = await begin(portico.client, "[[patch:one.txt]]", own=ASK, stop="tool_use")
    (call,) = calls_of(talk.first["messages"])
    change = {"path": str(home.work / "one.txt"), "kind": "add", "diff": "written by the model\n"}
    assert (call["name"], call["input"]) == ("apply_patch", {"changes": [change]})
    await talk.send(deny(call))
    assert not (home.work / "one.txt").exists()
    answer = await talk.send("[[patch:two.txt]]")
    answer = await talk.send(grant(calls_of(answer["messages"])[0]))
    assert (home.work / "two.txt").read_text() == "written by the model\n"


async def test_a_trusted_patch_outside_of_the_working_folder_is_asked_for(portico: Running, home: Home) -> None:
    talk = await begin(
        portico.client, f"[[patch:{home.base}/out.txt]]", own={"apply_patch": True, "shell": False}, stop="tool_use"
    )
    await talk.send(deny(calls_of(talk.first["messages"])[0]))
    assert not (home.base / "out.txt").exists()
    await talk.send_turn("[[patch:in.txt]]")
    assert (home.work / "in.txt").exists()


async def test_several_commands_are_asked_for_at_once(portico: Running) -> None:
    talk = await begin(portico.client, "[[parallel]]", own=ASK, stop="tool_use")
    calls = calls_of(talk.first["messages"])
    assert len(calls) == 3
    partly = await portico.client.post(f"/session/{talk.id}", json={"messages": [grant(calls[0])]})
    assert partly.status_code == 400 and calls[1]["toolCallId"] in partly.text
    answer = await talk.send(grant(calls[2]), deny(calls[0]), grant(calls[1]))
    assert answer["stopReason"] == "end_turn"
    assert len(results_of(answer["messages"])) == 3
    assert results_of(answer["messages"])[calls[0]["toolCallId"]] == "Tool call denied"


@pytest.mark.parametrize(
    "scenario", ["run:touch made.txt", "runoutside:touch made.txt", "patch:made.txt", "view:made.txt", "run:cat x"]
)
async def test_what_is_not_listed_does_not_run(portico: Running, home: Home, scenario: str) -> None:
    talk = await begin(portico.client, f"[[{scenario}]]")
    await talk.send_turn(f"[[{scenario}]]", agent={"tools": [{"name": "web_search"}]})
    assert not (home.work / "made.txt").exists()
    other = {"apply_patch": True} if "run" in scenario else {"shell": False}
    await begin(portico.client, f"[[{scenario}]]", own=other)
    assert not (home.work / "made.txt").exists()


async def test_only_what_is_listed_is_offered_to_the_model(home: Home, model: OpenAIServer) -> None:
    config = home.codex / "config.toml"
    config.write_text(config.read_text() + '[mcp_servers.mine]\ncommand = "sleep"\nargs = ["60"]\n')
    async with home.gateway() as running:
        await begin(running.client, "[[plain]]")
        assert _offered(model) == {"request_user_input", "apply_patch"}
        assert not of_home(home.path, "sleep")
        await begin(running.client, "[[plain]]", own={"shell": False, "web_search": False, "view_image": False})
        assert _offered(model) == {"request_user_input", "apply_patch", "exec_command", "write_stdin"}
        await begin(running.client, "[[plain]]", own={"web_search": True, "view_image": True})
        assert _offered(model) == {"request_user_input", "apply_patch", "web_search", "view_image"}


async def test_rules_files_of_the_cli_do_not_answer_in_the_clients_place(home: Home) -> None:
    (home.codex / "rules").mkdir()
    (home.codex / "rules" / "default.rules").write_text('prefix_rule(pattern=["touch"], decision="allow")\n')
    async with home.gateway() as running:
        body = {"agent": {"name": "codex", "tools": [{"name": "shell"}]}, "messages": [{"role": "user", "content": "[[plain]]"}]}
        answer = await running.client.put("/session", json=body)
        assert answer.status_code >= 500 and "default.rules" in answer.text
        await begin(running.client, "[[run:touch made.txt]]")
        assert not (home.work / "made.txt").exists()
        await begin(running.client, "[[run:touch made.txt]]", own=ASK, rules="apply")
        assert (home.work / "made.txt").exists()


async def test_the_clis_own_reviewer_does_not_answer_in_the_clients_place(home: Home) -> None:
    config = home.codex / "config.toml"
    config.write_text('approvals_reviewer = "auto_review"\napproval_policy = "never"\n' + config.read_text())
    async with home.gateway() as running:
        for scenario, own in (("run:touch made.txt", ASK), ("patch:made.txt", {"shell": True, "apply_patch": False})):
            talk = await begin(running.client, f"[[{scenario}]]", own=own, stop="tool_use")
            assert len(calls_of(talk.first["messages"])) == 1
            assert not (home.work / "made.txt").exists()


async def test_a_user_message_in_place_of_an_answer_cancels_the_call(portico: Running, home: Home) -> None:
    talk = await begin(portico.client, "[[run:touch made.txt]]", own=ASK, stop="tool_use")
    assert (await talk.send_turn("[[plain]] never mind")).startswith("Hello")
    assert not (home.work / "made.txt").exists()
    history = await talk.history()
    assert [m["role"] for m in history] == ["user", "assistant", "tool", "user", "assistant"]


def _offered(model: OpenAIServer) -> set[str]:
    return {tool.get("name") or tool["type"] for tool in model.bodies()[-1]["tools"]}
