"""The real claude in the web console: thoughts, commands, edits, sub-agents, plans and questions, and answers to each."""

from __future__ import annotations

import json

from playwright.sync_api import expect

from tests.console.checked_pages import Windows
from tests.model_server.scenarios import Step, Text, Thinking, ToolUse, text_step
from tests.real.console_windows import ANSWER_MS, WIDE, begin, expect_end, send, use_console, waiting_call
from tests.real.tool_bench import Bench, bash, daemon_of

QUESTION = {
    "questions": [
        {
            "question": "Which color?",
            "header": "Color",
            "options": [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}],
            "multiSelect": False,
        }
    ]
}


async def test_a_command_is_approved_by_a_key_and_seen_in_another_window(unstarted_bench: Bench) -> None:
    bench = unstarted_bench
    prompt = bench.model_replies(
        Step((Thinking("I look at the files."), bash("echo shown; touch made")), chunk=5000), text_step("**Done** here.")
    )

    def steps(windows: Windows) -> None:
        page = begin(windows, "Claude Code", prompt)
        card = waiting_call(page)
        expect(card.locator(".exact-block").first).to_have_text("echo shown; touch made")
        other = windows.open(page.url.removeprefix(windows.url), viewport=WIDE)
        waiting_call(other)
        page.keyboard.press("Escape")
        page.locator(".talk-list").focus()
        page.keyboard.press("y")
        for window in (page, other):
            expect_end(window, "Done here.")
            main = window.get_by_role("main")
            expect(main.locator("strong")).to_have_text("Done")
            expect(main.locator(".tool")).to_contain_text("shown")
            expect(main.locator(".talk-thinking")).to_contain_text("Thought")
        assert (bench.work / "made").exists()

    async with daemon_of(bench) as daemon:
        await use_console(daemon.url, steps)


async def test_an_edit_is_a_diff_before_and_after_it_is_approved(unstarted_bench: Bench) -> None:
    bench = unstarted_bench
    path = bench.work / "a.txt"
    path.write_text("".join(f"line {n}\n" for n in range(1, 31)))
    edit = ToolUse("Edit", {"file_path": str(path), "old_string": "line 20\n", "new_string": "twenty\n"})
    prompt = bench.model_replies(
        Step((ToolUse("Read", {"file_path": str(path)}),), chunk=5000), Step((edit,), chunk=5000), text_step("Edited.")
    )

    def steps(windows: Windows) -> None:
        page = begin(windows, "Claude Code", prompt)
        waiting_call(page).locator(".approval-others").click()
        page.get_by_role("menuitem", name="Always allow Read").click()
        page.locator(".approval", has_text="Edit").wait_for(timeout=ANSWER_MS)
        card = waiting_call(page)
        expect(card.locator(".diff")).to_contain_text("twenty")
        card.get_by_role("button", name="Allow", exact=False).first.click()
        expect_end(page, "Edited.")
        done = page.locator(".tool", has_text="Edit")
        # The CLI reports the hunk with its place in the file.
        expect(done.locator(".diff")).to_contain_text("20")
        expect(done.locator(".diff")).to_contain_text("line 19")
        assert "twenty" in path.read_text()

    async with daemon_of(bench) as daemon:
        await use_console(daemon.url, steps)


async def test_a_file_that_is_written_over_is_a_diff_against_the_disk(unstarted_bench: Bench) -> None:
    bench = unstarted_bench
    path = bench.work / "a.txt"
    path.write_text("one\ntwo\nthree\n")
    write = ToolUse("Write", {"file_path": str(path), "content": "one\n2\nthree\n"})
    prompt = bench.model_replies(
        Step((ToolUse("Read", {"file_path": str(path)}),), chunk=5000), Step((write,), chunk=5000), text_step("Written.")
    )

    def steps(windows: Windows) -> None:
        page = begin(windows, "Claude Code", prompt)
        waiting_call(page).locator("[data-kind=allow_once]").click()
        page.locator(".approval", has_text="Write").wait_for(timeout=ANSWER_MS)
        card = waiting_call(page)
        expect(card.locator(".diff-name")).to_contain_text("replaces the file")
        expect(card.locator("tr.removed .diff-text")).to_have_text("two")
        expect(card.locator("tr.added .diff-text")).to_have_text("2")
        card.locator("[data-kind=allow_once]").click()
        expect_end(page, "Written.")
        assert path.read_text() == "one\n2\nthree\n"

    async with daemon_of(bench) as daemon:
        await use_console(daemon.url, steps)


async def test_a_rejection_with_a_reason_reaches_the_model(unstarted_bench: Bench) -> None:
    bench = unstarted_bench
    prompt = bench.model_calls(bash("rm -r everything"), after="I did not.")

    def steps(windows: Windows) -> None:
        page = begin(windows, "Claude Code", prompt)
        waiting_call(page)
        page.locator(".talk-list").focus()
        page.keyboard.press("n")
        page.keyboard.type("keep them")
        page.keyboard.press("Enter")
        expect_end(page, "I did not.")
        expect(page.locator(".tool")).to_contain_text("keep them")

    async with daemon_of(bench) as daemon:
        await use_console(daemon.url, steps)
    assert "keep them" in json.dumps(bench.sent())


async def test_calls_of_a_subagent_are_inside_its_call(unstarted_bench: Bench) -> None:
    bench = unstarted_bench
    agent = {"description": "sub", "prompt": "[[inner]] do it", "subagent_type": "general-purpose", "run_in_background": False}
    bench.model_calls(bash("echo from-sub"), after="Found.", name="inner")
    prompt = bench.model_calls(ToolUse("Agent", agent), after="It reported.")

    def steps(windows: Windows) -> None:
        page = begin(windows, "Claude Code", prompt)
        expect(waiting_call(page)).to_contain_text("Agent")
        waiting_call(page).get_by_role("button", name="Allow", exact=False).first.click()
        page.locator(".approval", has_text="echo from-sub").wait_for(timeout=ANSWER_MS)
        waiting_call(page).get_by_role("button", name="Allow", exact=False).first.click()
        expect_end(page, "It reported.")
        outer = page.locator(".tool", has_text="Agent").first
        expect(outer.locator(".tool-children .tool")).to_contain_text("echo from-sub")

    async with daemon_of(bench) as daemon:
        await use_console(daemon.url, steps)


async def test_a_question_is_answered_by_a_choice(unstarted_bench: Bench) -> None:
    bench = unstarted_bench
    prompt = bench.model_calls(ToolUse("AskUserQuestion", QUESTION), after="Blue it is.")

    def steps(windows: Windows) -> None:
        page = begin(windows, "Claude Code", prompt)
        card = waiting_call(page)
        expect(card).to_contain_text("Which color?")
        card.get_by_label("Blue").check()
        card.get_by_role("button", name="Answer").click()
        expect_end(page, "Blue it is.")

    async with daemon_of(bench) as daemon:
        await use_console(daemon.url, steps)
    assert "Blue" in json.dumps(bench.sent()[-1])


async def test_a_plan_is_read_and_approved_in_a_mode(unstarted_bench: Bench) -> None:
    bench = unstarted_bench
    plan = ToolUse("ExitPlanMode", {"plan": "# The plan\n\n1. Write a file\n"})
    prompt = bench.model_calls(plan, after="I begin.")

    def steps(windows: Windows) -> None:
        page = begin(windows, "Claude Code", prompt, Mode="plan")
        card = waiting_call(page)
        expect(card.locator(".approval-plan h1")).to_have_text("The plan")
        card.get_by_role("button", name="Yes", exact=False).first.click()
        expect_end(page, "I begin.")

    async with daemon_of(bench) as daemon:
        await use_console(daemon.url, steps)


async def test_a_session_is_cancelled_and_goes_on(unstarted_bench: Bench) -> None:
    bench = unstarted_bench
    prompt = bench.model_replies(Step((Text("word " * 600),), chunk=5, delay=0.05))
    bench.model_replies(text_step("Again."), name="inner")

    def steps(windows: Windows) -> None:
        page = begin(windows, "Claude Code", prompt)
        expect(page.get_by_role("main")).to_contain_text("word word", timeout=ANSWER_MS)
        page.keyboard.press("Escape")
        expect(page.locator(".conversation-header")).to_contain_text("Idle", timeout=ANSWER_MS)
        send(page, "go [[inner]]")
        expect_end(page, "Again.")

    async with daemon_of(bench) as daemon:
        await use_console(daemon.url, steps)


async def test_tasks_of_the_agent_are_a_list_of_steps(unstarted_bench: Bench) -> None:
    bench = unstarted_bench
    tasks = [ToolUse("TaskCreate", {"subject": subject, "description": "what to do"}) for subject in ("Look", "Write")]
    prompt = bench.model_replies(
        Step(tuple(tasks), chunk=5000),
        Step((ToolUse("TaskUpdate", {"taskId": "1", "status": "completed"}),), chunk=5000),
        text_step("Listed."),
    )

    def steps(windows: Windows) -> None:
        page = begin(windows, "Claude Code", prompt, Mode="default")
        expect_end(page, "Listed.")
        found = page.locator(".talk-steps").last
        expect(found.locator("li")).to_contain_text(["Look", "Write"])
        expect(found.locator("li").first).to_contain_text("(done)")

    async with daemon_of(bench) as daemon:
        await use_console(daemon.url, steps)
