"""`portico doctor`: prints what works and what does not, with the command that solves each problem."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from gateway.cli.doctor_screen import print_report
from gateway.cli.options import CONFIG, DATA_DIR, HOST, PORT, load_settings
from gateway.cli.output import say
from gateway.cli.own_program import NAMES
from gateway.cli.signals import EndSignals
from gateway.config import configuration_file, user_file
from gateway.diagnosis.daemon import quoted_command
from gateway.diagnosis.diagnosis import Subject, diagnose
from gateway.security.process_inspection import deny_process_inspection
from gateway.terminal_text import json_text

PROBLEM, INTERRUPTED = 1, 130
"""Exit codes: a problem was found; Ctrl-C."""


@click.command()
@CONFIG
@DATA_DIR
@HOST
@PORT
@click.option("--try", "tried", is_flag=True, help="Let each agent that can be used answer a short task. It costs some tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def doctor(config: Path | None, data_dir: Path | None, host: str | None, port: int | None, tried: bool, as_json: bool) -> None:
    """Check Portico, its data, the daemon and the agents. Exit with 1 if there is a problem.

    The daemon reports the agents where it runs; otherwise this process does. Nothing is changed.
    """
    deny_process_inspection()
    with _no_logging():
        try:
            report = EndSignals().run(diagnose(subject_of(config, data_dir, host, port, tried)))
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
    if as_json:
        printed = {"problems": report.problems, **report.model_dump()}
        say("\n".join(map(json_text, json.dumps(printed, indent=2, ensure_ascii=False).split("\n"))))
    else:
        print_report(report)
    sys.exit(PROBLEM if report.problems else 0)


def subject_of(config: Path | None, data_dir: Path | None, host: str | None, port: int | None, tried: bool) -> Subject:
    """Return what these options have diagnosed."""
    try:
        file = configuration_file(config)
    except OSError:
        # The check of the configuration has the reason.
        file = user_file()
    named = data_dir or (Path(os.environ["PORTICO_DATA_DIR"]) if os.environ.get("PORTICO_DATA_DIR") else None)
    started = sys.argv[0] if Path(sys.argv[0]).name in NAMES else "portico"
    return Subject(
        file.expanduser().absolute() if file else None,
        lambda: load_settings(config, data_dir, host, port),
        named.expanduser().absolute() if named else None,
        os.environ,
        quoted_command(started, {"--config": config, "--data-dir": data_dir}),
        tried,
    )


@contextmanager
def _no_logging() -> Iterator[None]:
    """Print no log lines: what they state is in the report."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
