"""Container runtimes for tests: bwrap, podman and docker, if they work on this machine, and a stand-in for docker.

podman has its images and containers in a folder of the tests. The image is made of empty folders; programs are mounted.
"""

from __future__ import annotations

import functools
import io
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import write_script

IMAGE = "localhost/portico-test:1"
SYSTEM_MOUNTS = ("/usr",)
"""What a program needs of this machine in the image."""
FAKE_DOCKER = Path(__file__).with_name("fake_docker.py")

_STORAGE = """
[storage]
driver = "vfs"
graphroot = "{folder}/graph"
rootless_storage_path = "{folder}/graph"
runroot = "{folder}/run"
"""
# A container as a CI machine is one has limits that podman cannot raise.
_ENGINE = """
[engine]
runtime = "{runtime}"
cgroup_manager = "cgroupfs"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=512:512"]
"""


@functools.cache
def bwrap_problem() -> str | None:
    """Why bwrap does not work here; None if it does."""
    program = shutil.which("bwrap")
    if program is None:
        return "bwrap is not installed"
    options = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid")
    tried = subprocess.run([program, *options, "true"], capture_output=True, text=True, timeout=20)
    return f"bwrap does not work here: {tried.stderr.strip()}" if tried.returncode else None


needs_bwrap = pytest.mark.skipif(bwrap_problem() is not None, reason=str(bwrap_problem()))


@functools.cache
def podman_environment() -> Mapping[str, str] | str:
    """The environment in which podman works and has IMAGE; or why it does not work here.

    With the runtime of its configuration, else with runc: crun does not know machines with both versions of cgroups.
    """
    if shutil.which("podman") is None:
        return "podman is not installed"
    problem = ""
    for runtime in ("crun", "runc"):
        if shutil.which(runtime) is None:
            problem = problem or f"{runtime} is not installed"
            continue
        # Not in pytest's folder: podman's path may have 108 characters at most.
        folder = Path(tempfile.gettempdir(), f"portico-podman-{os.getuid()}-{runtime}")
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "storage.conf").write_text(_STORAGE.format(folder=folder))
        (folder / "containers.conf").write_text(_ENGINE.format(runtime=runtime))
        own = {"CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"), "CONTAINERS_CONF": str(folder / "containers.conf")}
        environ = {**os.environ, **own}
        subprocess.run(["podman", "import", "-", IMAGE], input=_image(), env=environ, capture_output=True, timeout=60)
        mounts = [f"--volume={path}:{path}:ro" for path in SYSTEM_MOUNTS]
        argv = ["podman", "run", "--rm", "--init", "--pull=never", "--network=host", *mounts, IMAGE, "true"]
        tried = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60)
        if tried.returncode == 0:
            return own
        problem = f"podman does not work here: {tried.stderr.strip()[-300:]}"
    return problem


def require_podman() -> Mapping[str, str]:
    """The variables with which podman has IMAGE. Skips the test if podman does not work here."""
    found = podman_environment()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@contextmanager
def docker_daemon() -> Iterator[Mapping[str, str]]:
    """Run docker's daemon with a folder of its own, without networks, and give the variables with which it has IMAGE.

    Skips the test where `docker`, `dockerd` or the rights of root are missing, or where it does not start.
    """
    if os.geteuid() != 0 or any(shutil.which(name) is None for name in ("docker", "dockerd")):
        pytest.skip("docker's daemon is not installed, or cannot be started by this user")
    # Not in pytest's folder: the path of a socket may have 108 characters at most.
    with tempfile.TemporaryDirectory(prefix="portico-docker-", ignore_cleanup_errors=True) as folder:
        own = {"DOCKER_HOST": f"unix://{folder}/socket", "DOCKER_CONFIG": f"{folder}/config"}
        argv = [
            "dockerd", "--storage-driver=vfs", "--iptables=false", "--ip6tables=false", "--bridge=none",
            f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid", f"--host={own['DOCKER_HOST']}",
        ]  # fmt: skip
        with open(f"{folder}/log", "wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as daemon:
            try:
                environ, deadline = {**os.environ, **own}, time.monotonic() + 30
                while subprocess.run(["docker", "info"], env=environ, capture_output=True, timeout=30).returncode:
                    if daemon.poll() is not None or time.monotonic() > deadline:
                        pytest.skip(f"docker's daemon does not start here: {Path(folder, 'log').read_text()[-300:]}")
                    time.sleep(0.1)
                subprocess.run(
                    ["docker", "import", "-", IMAGE], input=_image(), env=environ, capture_output=True, check=True, timeout=60
                )
                yield own
            finally:
                # It ends its containerd, and leaves a mount.
                daemon.terminate()
                daemon.wait()
                subprocess.run(["umount", f"{folder}/exec/netns/default"], capture_output=True)


def _image() -> bytes:
    """A file system of empty folders, with the links of a system whose programs are in /usr."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        # docker puts its init into /sbin, which may not be in the mounted /usr.
        for name in ("usr", "etc", "proc", "sys", "dev", "run", "var", "var/tmp", "tmp", "home", "root", "sbin"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            tar.addfile(folder)
        for name in ("bin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
    return file.getvalue()


def install_fake_docker(folder: Path) -> dict[str, str]:
    """Install the stand-in for docker. Return the variables with which it is found: its records are in `folder`/docker."""
    programs = folder / "fake-bin"
    programs.mkdir()
    (folder / "docker").mkdir()
    command = shlex.join((sys.executable, "-I", "-S", str(FAKE_DOCKER), str(folder / "docker")))
    write_script(programs / "docker", f'exec {command} "$@"\n')
    return {"PATH": f"{programs}:{os.environ['PATH']}"}


def put_into(
    runtime: str,
    agent: dict[str, Any],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    *programs: Path,
    docker: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Let an agent's configuration run it in `runtime`, with its home folder. Return the variables that the gateway needs for it.

    In podman and docker it has the `programs` of this machine; `docker` are the variables of a daemon. Skips the test if the
    runtime does not work here.
    """
    agent["run_in"] = runtime
    if runtime == "bwrap":
        if problem := bwrap_problem():
            pytest.skip(problem)
        return {}
    variables = dict(require_podman() if docker is None else docker)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    agent["container"] = {"image": IMAGE, "home": str(home), "mounts": [*SYSTEM_MOUNTS, *map(str, programs)]}
    return variables


def containers_of(data_dir: Path, variables: Mapping[str, str]) -> list[str]:
    """The containers of podman that a gateway with this data directory has, running or not."""
    instance = (data_dir / "instance-id").read_text().strip()
    argv = ["podman", "ps", "--all", f"--filter=label=portico.instance={instance}", "--format={{.Names}}"]
    found = subprocess.run(argv, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=True)
    return found.stdout.split()
