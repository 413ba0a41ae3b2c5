"""The folder of a test run: what is left of a run that has ended is removed, a run that goes on is not touched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.support import run_folder
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[1]
RUN = """
import subprocess, sys
from pathlib import Path
from tests.support import run_folder
folder = run_folder.make(Path(sys.argv[1]))
program = ("sh", "-c", "trap '' TERM; sleep 600 & echo $! $$; wait")
marked = {sys.argv[2]: f"{folder}{sys.argv[3]}"}
child = subprocess.Popen(program, env=marked, stdout=subprocess.PIPE, start_new_session=True, text=True)
print(folder, *child.stdout.readline().split(), flush=True)
sys.stdin.read()
"""
"""Makes a folder and a process that ignores SIGTERM and has a child; both are left behind if it is killed."""
WHOLE_RUN = """
import asyncio
from tests.support import run_folder

async def test_that_is_killed(daemon):
    await daemon.start()
    with open(HERE, "w") as here:
        print(run_folder.current(), daemon.pid, "end", file=here)
    await asyncio.sleep(600)
"""


@contextmanager
def another_run(base: Path, variable: str, below: str = "") -> Iterator[tuple[subprocess.Popen[str], Path, list[psutil.Process]]]:
    """A process that has made a folder, the folder, and processes that belong to it by an environment variable."""
    command = (sys.executable, "-c", RUN, str(base), variable, below)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        folder, *pids = process.stdout.readline().split()
        left = [psutil.Process(int(pid)) for pid in pids]
        try:
            yield process, Path(folder), left
        finally:
            process.kill()
            for each in left:
                with suppress(psutil.NoSuchProcess):
                    each.kill()


def test_what_a_killed_run_has_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes belong to it by any of these variables. A run that goes on and what is of no run are not touched."""
    (tmp_path / "another").mkdir()
    with another_run(tmp_path, run_folder.VARIABLE) as (_, going_on, at_work), ExitStack() as stack:
        runs = [
            stack.enter_context(another_run(tmp_path, variable, below))
            for variable, below in ((run_folder.VARIABLE, ""), ("HOME", "/pytest/test0"), ("TMPDIR", "/tmp"))
        ]
        for process, folder, _ in runs:
            (folder / "pytest" / "closed").mkdir(parents=True)
            (folder / "pytest" / "closed" / "file").touch()
            (folder / "pytest" / "closed").chmod(0)
            process.kill()
            process.wait()
        run_folder.remove_ended(tmp_path, seconds=0.1)
        assert not any(run_folder.is_running(each) for _, _, left in runs for each in left)
        assert all(map(run_folder.is_running, at_work))
        assert {path.name for path in tmp_path.iterdir()} == {"another", going_on.name}


def test_a_folder_that_is_being_made_is_not_touched(tmp_path: Path) -> None:
    new, old = tmp_path / f"{run_folder.PREFIX}new", tmp_path / f"{run_folder.PREFIX}old"
    for folder in (new, old):
        folder.mkdir()
    os.utime(old, (0, 0))
    run_folder.remove_ended(tmp_path)
    assert list(tmp_path.iterdir()) == [new]


def test_a_folder_of_another_user_and_a_link_are_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / f"{run_folder.PREFIX}link").symlink_to(tmp_path / "outside")
    os.utime(tmp_path / "outside", (0, 0))
    run_folder.remove_ended(tmp_path)
    foreign = tmp_path / f"{run_folder.PREFIX}foreign"
    foreign.mkdir()
    os.utime(foreign, (0, 0))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    run_folder.remove_ended(tmp_path)
    assert foreign.is_dir() and (tmp_path / "outside").is_dir()


def test_a_process_that_hides_its_environment_belongs_to_the_run_by_its_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(process: psutil.Process) -> dict[str, str]:
        raise psutil.AccessDenied(process.pid)

    with subprocess.Popen((sys.executable, "-I", "-c", "input()", f"{tmp_path}/config.toml"), stdin=subprocess.PIPE) as process:
        monkeypatch.setattr(psutil.Process, "environ", denied)
        assert [each.pid for each in run_folder.processes_of(tmp_path)] == [process.pid]


def test_the_temporary_folders_are_kept_until_the_next_run(tmp_path: Path) -> None:
    with another_run(tmp_path, run_folder.VARIABLE) as (process, folder, left):
        (folder / run_folder.TEMPORARY).mkdir()
        (folder / "other").mkdir()
        process.kill()
        process.wait()
        for each in left:
            each.kill()
        run_folder.remove(folder, keep_temporary=True)
        assert {path.name for path in folder.iterdir()} == {run_folder.TEMPORARY, run_folder.ALIVE}
        run_folder.remove_ended(tmp_path)
        assert not folder.exists()


def test_a_file_system_in_the_folder_is_unmounted(tmp_path: Path) -> None:
    folder = tmp_path / f"{run_folder.PREFIX}disk"
    (folder / "disk").mkdir(parents=True)
    if subprocess.run(("mount", "-t", "tmpfs", "tmpfs", folder / "disk"), capture_output=True).returncode:
        pytest.skip("only root can mount a file system")
    run_folder.remove(folder)
    assert not folder.exists()


def begin(umask: int = 0o022, **environment: str) -> Path:
    """Begin a run in another process, and return its folder, which is removed when this returns."""
    code = (
        "import os, tempfile\n"
        f"os.umask({umask})\n"
        "from tests.support import run_folder\n"
        "folder = run_folder.begin()\n"
        "parts = (folder, folder / 'tmp', folder / 'memory')\n"
        "assert all(part.stat().st_mode & 0o7777 == 0o711 for part in parts)\n"
        "assert tempfile.gettempdir() == str(folder / 'tmp')\n"
        "print(folder)"
    )
    given = {"PATH": os.environ["PATH"], **environment}
    done = subprocess.run((sys.executable, "-c", code), cwd=ROOT, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = Path(done.stdout.strip())
    assert not found.exists()
    return found


def test_a_run_that_ends_removes_its_folder_which_another_account_can_enter_whatever_the_umask() -> None:
    assert begin(0o077).name.startswith(run_folder.PREFIX)


def test_a_temporary_folder_whose_path_does_not_suit_is_not_used() -> None:
    chosen = Path(os.environ["TMPDIR"], "a b")
    chosen.mkdir()
    chosen.chmod(0o711)
    assert begin(TMPDIR=str(chosen)).parent == Path("/tmp").resolve()
    chosen.rename(chosen.with_name("ab"))
    assert begin(TMPDIR=str(chosen.with_name("ab"))).parent == chosen.with_name("ab")


def start_whole_run(test: Path) -> subprocess.Popen[str]:
    """Start pytest as `make test` does, for one file, and not as a part of this run."""
    options = ("-q", "-n0", "-ptests.conftest", "-pno:cacheprovider", f"-c{ROOT}/pyproject.toml", f"--rootdir={ROOT}")
    of_this_run = (run_folder.VARIABLE, "TMPDIR", "PYTEST_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(of_this_run)}
    command = (sys.executable, "-m", "pytest", *options, test)
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


async def test_nothing_is_left_of_a_whole_run(tmp_path: Path) -> None:
    here, file = tmp_path / "here", tmp_path / "test_whole_run.py"
    file.write_text(WHOLE_RUN.replace("HERE", repr(str(here))))
    with start_whole_run(file) as process:
        try:
            # Starting all of it takes 3 s of CPU.
            await wait_until(lambda: process.poll() is not None or (here.exists() and "end" in here.read_text()), seconds=150)
            assert process.returncode is None, process.communicate()[0]
            folder, pid, _ = here.read_text().split()
            left = psutil.Process(int(pid))
        finally:
            process.kill()
    for base in (Path(folder).parent, run_folder.MEMORY):
        run_folder.remove_ended(base)
    with pytest.raises(FileNotFoundError):
        os.stat(folder)
    assert not run_folder.is_running(left)
