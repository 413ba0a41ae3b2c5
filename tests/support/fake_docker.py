"""A stand-in for docker's client: `fake_docker.py FOLDER run|rm|ps|image …`. Its arguments are in `calls`.

`run` starts the command on this machine as docker's daemon does: not as a descendant of the client, with the variables only that
are passed. `NAME.pid` has its process, `NAME.code` its exit code. The image `missing`
is not there.
"""

import ctypes
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PYTHON = (sys.executable, "-I", "-S")


def run(folder: Path, arguments: list[str]) -> int:
    given = {"env": [], "name": "", "entrypoint": "", "workdir": "/"}
    while arguments[0].startswith("-"):
        name, _, value = arguments.pop(0).lstrip("-").partition("=")
        if name == "env":
            given["env"].append(value)
        else:
            given[name] = value
    variables = (text.partition("=") for text in given["env"])
    env = {name: value if equals else os.environ[name] for name, equals, value in variables}
    env.setdefault("PATH", os.environ["PATH"])
    pid_file, code_file = (folder / f"{given['name']}.{kind}" for kind in ("pid", "code"))
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir(given["workdir"])
            # Without the marker in its own environment, which was there when it started.
            os.execve(
                sys.executable,
                [*PYTHON, __file__, str(folder), "contain", str(pid_file), str(code_file), given["entrypoint"], *arguments[1:]],
                env,
            )
        os._exit(0)
    os.wait()
    for number in range(3):
        os.close(number)
    while not code_file.exists():
        time.sleep(0.005)
    code = int(code_file.read_text() or 0)
    for file in (pid_file, code_file):
        file.unlink(missing_ok=True)
    return code


def contain(pid_file: Path, code_file: Path, argv: list[str]) -> int:
    """Run a command as the first process of a container does."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    pid_file.write_text(str(os.getpid()))
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.execvp(argv[0], argv)
    for number in range(3):
        os.close(number)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    temporary = code_file.with_suffix(".new")
    temporary.write_text(str(128 - code if code < 0 else code))
    temporary.rename(code_file)
    return 0


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path("/proc", name, "stat").read_text()
        except OSError:
            continue
        children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def remove(folder: Path, names: list[str]) -> int:
    found = 0
    for name in names:
        try:
            processes = descendants(int((folder / f"{name}.pid").read_text()))
        except (OSError, ValueError):
            sys.stderr.write(f"Error response from daemon: No such container: {name}\n")
            found = 1
            continue
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        (folder / f"{name}.pid").unlink(missing_ok=True)
    return found


def main(folder: Path, command: str, *arguments: str) -> int:
    if command == "contain":
        return contain(Path(arguments[0]), Path(arguments[1]), list(arguments[2:]))
    with open(folder / "calls", "a") as calls:
        calls.write(json.dumps([command, *arguments]) + "\n")
    if command == "run":
        return run(folder, list(arguments))
    if command == "rm":
        return remove(folder, [name for name in arguments if not name.startswith("-")])
    if command == "ps":
        label = next(text for text in arguments if text.startswith("--filter=")).partition("portico.instance=")[2]
        names = (file.stem for file in folder.glob("*.pid"))
        sys.stdout.write("\n".join(name for name in names if name.startswith(f"portico-{label}.")))
    if command == "image" and arguments[-1] == "missing":
        sys.stderr.write("Error response from daemon: No such image: missing\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
