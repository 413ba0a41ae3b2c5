"""The workflow with a service and the JavaScript of the page about tests of UIs. tests/test_wheel.py has the other workflow."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.gateway.portico_testing.pages import job_of, write_files
from tests.support.portico_command import PorticoCommand

SERVICE = ".github/workflows/service.yml"
CONTAINERFILE = Path(__file__).parents[3] / "docs" / "container" / "Containerfile"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_the_service_takes_its_settings_from_its_variables_and_node_talks_to_it(tmp_path: Path) -> None:
    project = write_files(tmp_path)
    job = job_of(SERVICE)
    service = job["services"]["portico"]
    [command] = re.findall(r"^CMD \[(.*)\]$", CONTAINERFILE.read_text(), re.MULTILINE)
    arguments = [*re.findall(r'"([^"]*)"', command)]
    assert service["ports"] == [f"{arguments[-1]}:{arguments[-1]}"] and arguments[-2] == "--port"
    env = {**service["env"], "PORTICO_DATA_DIR": str(project / "data")}
    async with PorticoCommand(project, *arguments[:-1], "0", env=env, config=False).serving() as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert job["env"]["PORTICO_KEY"] == service["env"]["PORTICO_API_KEY"]
        [step] = [step["run"] for step in job["steps"] if "run" in step]
        own = {"PATH": os.environ["PATH"], "HOME": str(project), "PORTICO_KEY": job["env"]["PORTICO_KEY"], "PORTICO_URL": url}
        done = await _run(step, project, own)
        wrong = await _run(step, project, {**own, "PORTICO_KEY": "another-key-of-16"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# pass 3" in done.stdout or "pass 3" in done.stdout
    assert wrong.returncode != 0 and "401" in wrong.stdout


async def _run(step: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", "-ec", step], cwd=folder, env=env, capture_output=True, text=True, timeout=120)

    return await asyncio.to_thread(run)
