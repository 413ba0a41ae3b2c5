"""The wheel: it has every file of the packages, needs no compiler, and passes the steps of a user's workflow."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.gateway.portico_testing.pages import job_of, write_files
from tests.support.wheel import ROOT, build_wheel


def files_of_packages() -> set[str]:
    found = (path for package in ("gateway", "drivers") for path in (ROOT / package).rglob("*") if path.is_file())
    names = {str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts}
    # Beside the package `gateway`, and not in it.
    return {name.removeprefix("gateway/") if name.startswith("gateway/portico_testing/") else name for name in names}


@pytest.mark.slow
def test_wheel_has_every_file_and_passes_the_steps_of_a_workflow(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path / "wheel")
    check_contents(wheel)
    run_steps(wheel, tmp_path / "project")


def check_contents(wheel: Path) -> None:
    # For any Python and any platform: it has no compiled code.
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        packed = {name for name in opened.namelist() if ".dist-info/" not in name}
        [entry_points] = [name for name in opened.namelist() if name.endswith(".dist-info/entry_points.txt")]
        declared = opened.read(entry_points).decode()
        metadata = message_from_bytes(opened.read(entry_points.replace("entry_points.txt", "METADATA")))
    assert packed == files_of_packages() >= {"portico_testing/__init__.py", "portico_testing/py.typed"}
    assert "portico = gateway.cli.main:main" in declared and "claude = drivers.claude:ClaudeDriver" in declared
    # `uvx portico-gateway` runs the command of this name.
    assert metadata["Name"] == "portico-gateway" and "portico-gateway = gateway.cli.main:main" in declared
    assert "[pytest11]\nportico = portico_testing\n" in declared
    assert set(metadata.get_all("Provides-Extra", [])) >= {"nodes", "postgresql", "testing"}
    required = [re.split(r"[^\w-]", requirement)[0] for requirement in metadata.get_all("Requires-Dist", [])]
    assert "psycopg" in required and "portico" not in required


def run_steps(wheel: Path, project: Path) -> None:
    """Run the steps of the workflow of docs/testing-your-ui.md, in a project that has packages whose names Portico's have too.

    The wheel is in an environment of its own, which has everything else from that of this run.
    """
    write_files(project)
    for name in ("gateway", "drivers"):
        (project / name).mkdir()
        (project / name / "__init__.py").write_text("OURS = True\n")
    test = project / "tests" / "test_demo.py"
    test.write_text(f"import drivers, gateway\n\nassert gateway.OURS and drivers.OURS\n\n\n{test.read_text()}")
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
