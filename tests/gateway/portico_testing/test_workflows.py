"""The workflows and the JavaScript of the page about tests of UIs: their steps, and the variables of the service."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.gateway.portico_testing.pages import FILES
from tests.support.portico_command import PorticoCommand
from tests.support.wheel import build_wheel

SERVICE = ".github/workflows/service.yml"
CONTAINERFILE = Path(__file__).parents[3] / "docs" / "container" / "Containerfile"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with the files of the page."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def job_of(workflow: str) -> dict[str, Any]:
    [job] = yaml.safe_load(FILES[workflow])["jobs"].values()
    return dict(job)


@pytest.mark.slow
def test_the_steps_of_the_workflow_pass(project: Path) -> None:
    """With the wheel in an environment of its own, which has everything else from that of this run."""
    wheel = build_wheel(project / "wheel")
    environment = project / "environment"
    venv.create(environment)
    python = environment / "bin" / "python"
    packages = sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)})
    (Path(packages) / "others.pth").write_text(sysconfig.get_path("purelib"))
    # An installation of pip takes longer than the rest of the test.
    programs = {
        "pip": f'"{sys.executable}" -m pip --python "{python}"',
        "pytest": f'"{python}" -c "import pytest; pytest.console_main()"',
    }
    for name, program in programs.items():
        (environment / "bin" / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (environment / "bin" / name).chmod(0o755)
    others = ("asyncio", "cacheprovider", "hypothesispytest", "schemathesis", "timeout", "xdist")
    env = {
        "PATH": f"{environment / 'bin'}:/usr/bin:/bin", "HOME": str(project), "TMPDIR": str(project),
        "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTEST_ADDOPTS": " ".join(f"-p no:{name}" for name in others),
    }  # fmt: skip
    steps = [step["run"] for step in job_of(".github/workflows/ui.yml")["steps"] if "run" in step]
    assert len(steps) == 2
    for step in steps:
        command = step.replace("${{ vars.PORTICO }}", wheel.as_uri())
        done = subprocess.run(["bash", "-ec", command], cwd=project, env=env, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    where = "import portico_testing, gateway; print(portico_testing.__file__, gateway.__file__)"
    found = subprocess.run([python, "-c", where], cwd="/", env=env, capture_output=True, text=True, check=True).stdout.split()
    assert all(path.startswith(packages) for path in found)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_the_service_takes_its_settings_from_its_variables_and_node_talks_to_it(project: Path) -> None:
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
