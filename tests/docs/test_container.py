"""docs/container/Containerfile: what can be tested without building it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

from tests.support.daemon import Daemon
from tests.support.wheel import SOURCES

CONTAINERFILE = Path(__file__).parents[2] / "docs/container/Containerfile"


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the last stage, and before them those of the others."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.MULTILINE))
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


def last(name: str) -> str:
    return [value for instruction, value in instructions() if instruction == name][-1]


def test_wheel_is_built_from_all_its_sources() -> None:
    copied = {name for instruction, value in instructions() if instruction == "COPY" for name in value.split()[:-1]}
    assert copied == set(SOURCES)


def test_daemon_runs_as_an_unprivileged_user_with_a_volume_and_a_key() -> None:
    names = [instruction for instruction, _ in instructions()]
    assert last("USER") == "portico" and "--uid 10001 portico" in last("RUN")
    assert "RUN" not in names[names.index("USER") :]
    data = last("ENV").partition("PORTICO_DATA_DIR=")[2]
    assert data in json.loads(last("VOLUME")) and f"--owner portico --group portico --mode 700 {data}" in last("RUN")
    command = [*json.loads(last("ENTRYPOINT")), *json.loads(last("CMD"))]
    assert command == ["portico", "serve", "--host", "0.0.0.0", "--port", last("EXPOSE")]


async def test_health_check_succeeds_while_the_daemon_runs(daemon: Daemon) -> None:
    program, *arguments = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert program == "/opt/portico/bin/python"
    await daemon.start()
    command = [argument.replace(f"http://127.0.0.1:{last('EXPOSE')}", daemon.url) for argument in arguments]

    async def checked() -> int:
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.DEVNULL)
        return await asyncio.wait_for(process.wait(), 60)

    assert daemon.url in command[-1]
    assert await checked() == 0
    await daemon.stop()
    assert await checked() == 1
