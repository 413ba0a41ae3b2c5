"""The tables of the tests that run in a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster_table import main, reason_of, subject_of

REPORT = """<testsuites><testsuite>
<testcase classname="tests.gateway.protocols.aap.test_a" name="test_x[/aap/v2]" />
<testcase classname="tests.gateway.protocols.aap.test_a" name="test_x[postgresql-root]"><failure message="no" /></testcase>
<testcase classname="tests.gateway.protocols.acp.test_b" name="test_y"><error message="at setup" /></testcase>
<testcase classname="tests.gateway.protocols.test_execute" name="test_z">
<skipped message="cluster: uses `tasks` of a gateway" /></testcase>
</testsuite></testsuites>"""
"""A report of pytest."""
EMPTY = "<testsuites><testsuite /></testsuites>"


def test_a_table_counts_by_protocol_and_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "near.xml").write_text(REPORT)
    (tmp_path / "away.xml").write_text(EMPTY)
    assert main(["--reports", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:7] == [
        "| AAP v1, at the root | 0 | 1 | 0 | 0 | 0 | 0 |",
        "| AAP v2 | 1 | 0 | 0 | 0 | 0 | 0 |",
        "| `POST /v1/execute` | 0 | 0 | 1 | 0 | 0 | 0 |",
        "| ACP | 0 | 1 | 0 | 0 | 0 | 0 |",
        "| all | 1 | 2 | 1 | 0 | 0 | 0 |",
    ]
    assert lines[-1] == "| looks inside of one process | 1 |"
    (tmp_path / "near-again.xml").write_text(REPORT.replace('<failure message="no" />', "").replace("<error ", "<property "))
    assert main(["--reports", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("module", "name", "subject"),
    [
        ("tests.gateway.protocols.aap.test_a", "test_x[root-delta]", "root"),
        ("tests.gateway.protocols.aap.test_a", "test_x[near-/aap/v3]", "/aap/v3"),
        ("tests.gateway.protocols.aap.test_a", "test_x[near]", "aap"),
        ("tests.gateway.protocols.test_execute_idempotency", "test_x[postgresql]", "execute"),
        ("tests.gateway.protocols.test_sse", "test_x", "all"),
    ],
)
def test_subjects(module: str, name: str, subject: str) -> None:
    assert subject_of(module, name) == subject


def test_reasons() -> None:
    assert reason_of("cluster: uses sessions.changes of a gateway") == "looks inside of one process"
    assert reason_of("cluster: has a daemon as a process") == "has a daemon as a process"
