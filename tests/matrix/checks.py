"""The checks of a release: rows of the table of behaviours in tests/real/behaviours, which a release has to pass."""

from __future__ import annotations

from dataclasses import dataclass

FOLDER = "tests/real/behaviours"


@dataclass(frozen=True)
class Check:
    """A check. `test` is the file and the name of its test, `case` the parameter of the test after the CLI's name."""

    sentence: str
    test: str
    case: str = ""

    def node_id(self, cli: str) -> str:
        """The id by which pytest runs the test for a CLI."""
        return f"{FOLDER}/{self.test}[{'-'.join(filter(None, (cli, self.case)))}]"


CHECKS = {
    "task": Check("A task of `POST /v1/execute` ends with the model's text.", "test_tasks.py::test_a_task"),
    "session": Check("A session is created with a prompt, and has the model's answer.", "test_turns.py::test_a_session"),
    "warm turn": Check(
        "The second turn runs in the process of the first, and the model has both.",
        "test_turns.py::test_a_warm_process_keeps_the_context",
    ),
    "resume": Check(
        "A session goes on when its CLI was killed between two turns, and then when the daemon was restarted.",
        "test_processes.py::test_resumption",
    ),
    "seed": Check(
        "The model has the history that a session was created with, with its call and the result.",
        "test_turns.py::test_a_session_begins_with_a_history",
    ),
    "silent loss": Check(
        "After a restart of the daemon, and after the end of the CLI, the model has every former turn, once.",
        "test_processes.py::test_no_turn_is_lost",
    ),
    "application tools": Check(
        "Twenty calls of the application's tool in one message of the model; the word says if they come `parallel` or `serial`.",
        "test_tools.py::test_application_tools",
    ),
    "permission": Check(
        "A command waits for the client: allowed, it runs; refused, it does not, and the turn goes on to its end.",
        "test_tools.py::test_a_permission",
    ),
    "kill -9": Check(
        "The daemon is killed (SIGKILL) while it waits for a result; the model has the result that comes after its restart.",
        "test_processes.py::test_results_of_calls_whose_asker_was_killed",
        "daemon",
    ),
}
"""By the name in the results."""
