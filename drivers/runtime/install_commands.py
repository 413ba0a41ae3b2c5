"""Shell commands by which a person gets what is missing: a program, or the image of a container. Nothing runs them here."""

from __future__ import annotations

import shutil

PACKAGES = {"docker": "docker.io", "bwrap": "bubblewrap"}
"""The packages of programs that have another name, in most distributions."""
INSTALLERS = (
    ("apt-get", "sudo apt-get install"), ("dnf", "sudo dnf install"), ("zypper", "sudo zypper install"),
    ("pacman", "sudo pacman -S"), ("apk", "sudo apk add"), ("brew", "brew install"),
)  # fmt: skip


def install_command(program: str) -> str | None:
    """Return the command that installs a program; None on a machine whose package manager is not known."""
    known = next((command for manager, command in INSTALLERS if shutil.which(manager)), None)
    return f"{known} {PACKAGES.get(program, program)}" if known else None


def pull_command(runtime: str, image: str) -> str:
    """Return the command that gets an image. An image whose name begins with `localhost/` is built on this machine."""
    return f"{runtime} build -t {image} ." if image.startswith("localhost/") else f"{runtime} pull {image}"
