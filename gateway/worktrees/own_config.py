"""What counts of a repository's own configuration: some keys, with which git runs no program and goes to no other folder.

Git reads the configuration of the folder that worktrees share (`GIT_COMMON_DIR`), and nothing makes it ignore a key. So it gets
another folder of that kind: with a configuration of its own, and links to what the repository has otherwise.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from drivers.runtime.confined_files import NotRegularFile, OutsideFolders, read_file
from gateway.worktrees.git import Git

_PARTS = ("HEAD", "logs", "objects", "packed-refs", "refs", "reftable", "shallow", "worktrees")
"""What git finds in that folder, besides the configuration, and hooks, which do not run."""
_NEW_PARTS = ("packed-refs", "shallow")
"""The files of these that git may create."""
_INFO, MAX_INFO = ("attributes", "exclude"), 16 * 1024 * 1024
"""The files of `info` that git gets copies of, and their size in bytes at most. From a device in the place of one it would read
without an end, as it would by `core.attributesFile`, which does not count."""
_ALLOWED = frozenset(
    {
        # The format of the repository.
        "core.repositoryformatversion", "core.sharedrepository", "core.logallrefupdates",
        # How files are compared, read and written.
        "core.filemode", "core.symlinks", "core.ignorecase", "core.precomposeunicode", "core.autocrlf", "core.eol",
        "core.safecrlf", "core.checkroundtripencoding", "core.trustctime", "core.checkstat", "core.bigfilethreshold",
        "core.excludesfile", "core.sparsecheckout", "core.sparsecheckoutcone", "index.sparse",
        # Commits and merges.
        "user.name", "user.email", "author.name", "author.email", "committer.name", "committer.email",
        "merge.renames", "merge.directoryrenames", "merge.renormalize",
        # Where Git LFS gets its files from.
        "lfs.url", "lfs.fetchinclude", "lfs.fetchexclude",
    }
)  # fmt: skip
"""Keys without a subsection."""
_ALLOWED_OF_REMOTES = frozenset({"url", "lfsurl"})
"""Those of a remote. The user's own configuration may have parts that hold for a URL only."""
_FLATTENED = "extensions.worktreeconfig"
"""The extension with which git reads a second file, whose keys are in the only one here."""

Setting = tuple[str, str]
"""A key as git lists it, and its value."""


async def with_allowed_config(git: Git) -> tuple[Git, list[Setting]]:
    """Return git with what counts of the configuration of its repository, and the settings of the checkout alone in that.

    Raises GitFailed.
    """
    fields = (await git("config", "--list", "--no-includes", "--show-scope", "-z")).fields
    settings = [(scope, _setting(text)) for scope, text in zip(fields[::2], fields[1::2], strict=True)]
    allowed = [(scope, one) for scope, one in settings if scope in ("local", "worktree") and _is_allowed(one[0])]
    assert git.common_dir is not None
    folder = await asyncio.to_thread(_common_dir, git.confinement.temporary, git.common_dir, [one for _, one in allowed])
    return replace(git, common_dir=folder), [one for scope, one in allowed if scope == "worktree"]


def config_text(settings: Iterable[Setting]) -> bytes:
    """Return settings as a file of git's configuration."""
    lines = list[str]()
    for key, value in settings:
        section, _, rest = key.partition(".")
        subsection, _, name = rest.rpartition(".")
        title = f'{section} "{_escaped(subsection, "")}"' if subsection else section
        lines.append(f'[{title}]\n\t{name} = "{_escaped(value, "ntb")}"\n')
    return "".join(lines).encode(errors="surrogateescape")


def _setting(text: str) -> Setting:
    key, separator, value = text.partition("\n")
    # Without a value it is true.
    return key, value if separator else "true"


def _is_allowed(key: str) -> bool:
    section, _, rest = key.partition(".")
    subsection, _, name = rest.rpartition(".")
    if section == "extensions":
        # Git refuses a repository with one that it does not know.
        return key != _FLATTENED
    return key in _ALLOWED if not subsection else section == "remote" and name in _ALLOWED_OF_REMOTES


def _escaped(text: str, letters: str) -> str:
    for character, letter in (("\\", "\\"), ('"', '"'), ("\n", "n"), ("\t", "t"), ("\b", "b")):
        if not letter.isalpha() or letter in letters:
            text = text.replace(character, f"\\{letter}")
    return text


def _common_dir(temporary: Path, repository: Path, settings: Sequence[Setting]) -> Path:
    """Make the folder that git takes for the one that the worktrees share."""
    folder = Path(tempfile.mkdtemp(prefix="git-", dir=temporary))
    for name in _PARTS:
        if name in _NEW_PARTS or os.path.lexists(repository / name):
            (folder / name).symlink_to(repository / name)
    (folder / "info").mkdir()
    for name in _INFO:
        with suppress(OSError, OutsideFolders, NotRegularFile):
            (folder / "info" / name).write_bytes(read_file(repository / "info" / name, MAX_INFO, inside=repository))
    # Not a link: Git LFS creates it where it is missing.
    stored = ("lfs.storage", str(repository / "lfs"))
    (folder / "config").write_bytes(config_text([*settings, stored]))
    return folder
