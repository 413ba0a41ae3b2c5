"""Files and folders are opened inside given folders only, also while a folder is swapped with a symbolic link."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drivers.runtime import confined_files
from drivers.runtime.confined_files import ConfinedFolders, OutsideFolders, has_openat2, open_folder, remove_tree
from tests.support.swapped_folders import swapped

RACE_SECONDS = 0.15


@pytest.fixture(params=["openat2", "walk"], autouse=True)
def mechanism(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "walk":
        monkeypatch.setattr(confined_files, "has_openat2", lambda: False)
    elif not has_openat2():
        pytest.skip("the kernel does not have openat2, or does not permit it")


@pytest.fixture
def folders(tmp_path: Path) -> ConfinedFolders:
    """`work` and `more`; `work/sub` has a file, and so has `outside`."""
    for folder, text in (("work/sub", "inside"), ("more", "more"), ("outside", "outside")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").write_text(text)
    return ConfinedFolders((tmp_path / "work", tmp_path / "more"))


def read(folders: ConfinedFolders, path: Path) -> str:
    with open(folders.open(str(path), os.O_RDONLY)) as file:
        return file.read()


def write(folders: ConfinedFolders, path: Path, text: str) -> None:
    with open(folders.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, parents=True), "w") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("link", "target", "text"),
    [
        ("work/link", "sub", "inside"),
        ("work/link", "{base}/work/sub", "inside"),
        ("work/link", "../more", "more"),
        ("work/sub/link", "../../work/sub", "inside"),
        ("link", "work/sub", "inside"),
    ],
)
def test_a_link_that_leads_into_the_folders_is_followed(
    folders: ConfinedFolders, tmp_path: Path, link: str, target: str, text: str
) -> None:
    (tmp_path / link).symlink_to(target.format(base=tmp_path))
    assert read(folders, tmp_path / link / "file") == text
    write(folders, tmp_path / link / "new" / "deep" / "file", "new")
    assert read(folders, tmp_path / link / "new" / ".." / "new" / "deep" / "file") == "new"
    assert folders.exists(str(tmp_path / link / "new"))
    assert not folders.exists(str(tmp_path / link / "none" / "none"))


def test_a_link_to_a_file_is_followed(folders: ConfinedFolders, tmp_path: Path) -> None:
    (tmp_path / "work" / "link").symlink_to("sub/file")
    assert read(folders, tmp_path / "work" / "link") == "inside"
    write(folders, tmp_path / "work" / "link", "new")
    assert (tmp_path / "work" / "sub" / "file").read_text() == "new"


@pytest.mark.parametrize("path", ["outside/file", "work/link/file", "work/../outside/file", "work-two/file", ".", "work/loop/x"])
def test_a_path_outside_is_rejected(folders: ConfinedFolders, tmp_path: Path, path: str) -> None:
    (tmp_path / "work" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "work" / "loop").symlink_to("loop")
    uses: list[Callable[[Path], object]] = [
        lambda found: read(folders, found),
        lambda found: write(folders, found, "overwritten"),
        lambda found: folders.open_folder(str(found.parent / "none")),
        lambda found: folders.exists(str(found)),
    ]
    for use in uses:
        with pytest.raises(OutsideFolders):
            use(tmp_path / path)
    assert (tmp_path / "outside" / "file").read_text() == "outside"
    assert not (tmp_path / "work-two").exists()


def test_errors_have_the_path_that_was_given(folders: ConfinedFolders, tmp_path: Path) -> None:
    (tmp_path / "work" / "link").symlink_to("none")
    path = tmp_path / "work" / "link"
    with pytest.raises(FileNotFoundError) as missing:
        read(folders, path)
    assert missing.value.filename == str(path)
    for use in (lambda: read(folders, tmp_path / "work/sub/file/x"), lambda: folders.open_folder(f"{tmp_path}/work/sub/file")):
        with pytest.raises(NotADirectoryError):
            use()
    with pytest.raises(OutsideFolders, match="not an absolute path"):
        folders.open("work/sub/file", os.O_RDONLY)


def test_a_path_with_a_null_byte_is_rejected(folders: ConfinedFolders, tmp_path: Path) -> None:
    for use in (lambda: folders.open(f"{tmp_path}/work/sub/file\0x", os.O_RDONLY), lambda: open_folder(tmp_path / "work\0x")):
        with pytest.raises(ValueError, match=r"null (byte|character)"):
            use()


@pytest.mark.skipif(confined_files.SEARCH == os.O_RDONLY, reason="Python does not have the flag of this system")
def test_a_folder_that_can_only_be_searched(folders: ConfinedFolders, tmp_path: Path) -> None:
    (tmp_path / "work").chmod(0o100)
    try:
        assert read(folders, tmp_path / "work" / "sub" / "file") == "inside"
    finally:
        (tmp_path / "work").chmod(0o700)


def test_no_descriptor_is_left_open(folders: ConfinedFolders, tmp_path: Path) -> None:
    (tmp_path / "work" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "work" / "loop").symlink_to("loop")
    before = os.listdir("/dev/fd")
    write(folders, tmp_path / "work" / "new" / "deep" / "file", "new")
    for path in ("work/sub/none", "work/sub/file/x", "work/link/file", "work/loop/file"):
        with pytest.raises((OSError, OutsideFolders)):
            read(folders, tmp_path / path)
        with pytest.raises((OSError, OutsideFolders)):
            open_folder(tmp_path / path)
    assert os.listdir("/dev/fd") == before


FORBID_OPENAT2 = """
import ctypes, os, struct, sys
folder, number = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, sys.argv[3])
import confined_files
instructions = [(0x20, 0, 0, 0), (0x15, 0, 1, confined_files.OPENAT2), (0x06, 0, 0, 0x50000 | number), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in instructions))
program = ctypes.create_string_buffer(struct.pack("HP", len(instructions), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
# PR_SET_NO_NEW_PRIVS, then PR_SET_SECCOMP with SECCOMP_MODE_FILTER.
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
    sys.exit("no seccomp filter can be set")
folders = confined_files.ConfinedFolders([folder])
with open(folders.open(folder + "/sub/file", os.O_RDONLY)) as file:
    print(confined_files.has_openat2(), file.read())
try:
    folders.open(folder + "/sub/link/file", os.O_RDONLY)
except confined_files.OutsideFolders:
    print("rejected")
"""


@pytest.mark.parametrize("mechanism", ["walk"], indirect=True)
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_or_container_without_openat2(folders: ConfinedFolders, tmp_path: Path, error: int) -> None:
    (tmp_path / "work" / "sub" / "link").symlink_to(tmp_path / "outside")
    module = Path(confined_files.__file__).parent
    program = [sys.executable, "-I", "-S", "-c", FORBID_OPENAT2, str(tmp_path / "work"), str(error), str(module)]
    done = subprocess.run(program, capture_output=True, text=True)
    if "no seccomp filter" in done.stderr:
        pytest.skip("no seccomp filter can be set here")
    assert (done.stdout, done.stderr) == ("False inside\nrejected\n", "")


# -- removal ----------------------------------------------------------------------------------------------------------


def test_removal_of_a_folder_follows_no_link_in_it(tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    for folder in (tree / "a" / "b", outside):
        folder.mkdir(parents=True)
        (folder / "file").write_text("kept")
    (tree / "link").symlink_to(outside)
    (tree / "a" / "link").symlink_to(outside)
    (tree / "a" / "b" / "file-link").symlink_to(outside / "file")
    os.mkfifo(tree / "a" / "fifo")
    (tmp_path / "link").symlink_to(outside)
    for path in (tree, tmp_path / "link", tmp_path / "missing" / "folder", tmp_path / "missing"):
        remove_tree(path)
    assert os.listdir(tmp_path) == ["outside"] and (outside / "file").read_text() == "kept"


def test_removal_of_a_deep_folder_opens_few_files(tmp_path: Path) -> None:
    """Deeper than Python recurses, and than a path can name."""
    tree, before = tmp_path / "tree", os.open(".", os.O_RDONLY)
    try:
        tree.mkdir()
        os.chdir(tree)
        for n in range(1200):
            os.mkdir("deep-enough")
            if n % 100 == 0:
                os.mkdir(f"beside-{n}")
            os.chdir("deep-enough")
        os.fchdir(before)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = max(map(int, os.listdir("/dev/fd"))) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, hard))
        try:
            remove_tree(tree)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    finally:
        os.fchdir(before)
        os.close(before)
    assert not tree.exists()


# -- paths that change while they are opened --------------------------------------------------------------------------


@pytest.fixture
def swapped_after_resolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whenever a path is resolved, `work/sub` is then replaced by a symbolic link to `outside`."""
    resolve, sub = os.path.realpath, tmp_path / "work" / "sub"

    def resolve_and_swap(path: str) -> str:
        if sub.is_symlink():
            sub.unlink()
            (tmp_path / "work" / "moved").rename(sub)
        found = resolve(path)
        sub.rename(tmp_path / "work" / "moved")
        sub.symlink_to(tmp_path / "outside")
        return found

    monkeypatch.setattr(os.path, "realpath", resolve_and_swap)
    yield
    assert sub.is_symlink()


@pytest.mark.usefixtures("swapped_after_resolution")
def test_a_folder_replaced_by_a_link_after_its_path_is_resolved(folders: ConfinedFolders, tmp_path: Path) -> None:
    sub = tmp_path / "work" / "sub"
    uses: list[Callable[[], object]] = [
        lambda: read(folders, sub / "file"),
        lambda: write(folders, sub / "file", "overwritten"),
        lambda: write(folders, sub / "new" / "file", "created"),
        lambda: folders.open_folder(str(sub)),
        lambda: folders.exists(str(sub / "file")),
        lambda: folders.exists(str(sub / "none")),
    ]
    for use in uses:
        with pytest.raises(OutsideFolders, match="symbolic link"):
            use()
    assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == ["file"]
    assert (tmp_path / "outside" / "file").read_text() == "outside"


def test_a_folder_of_the_session_replaced_by_a_link(folders: ConfinedFolders, tmp_path: Path) -> None:
    (tmp_path / "work").rename(tmp_path / "moved")
    (tmp_path / "work").symlink_to("outside")
    for use in (lambda: read(folders, tmp_path / "work" / "file"), lambda: write(folders, tmp_path / "work" / "new", "new")):
        with pytest.raises(OutsideFolders):
            use()
    with pytest.raises(OSError, match="symbolic links"):
        open_folder(tmp_path / "work")
    assert not (tmp_path / "outside" / "new").exists()


def test_a_folder_that_is_swapped_with_a_link_all_the_time(folders: ConfinedFolders, tmp_path: Path) -> None:
    sub, outside = tmp_path / "work" / "sub", tmp_path / "outside"
    inside = os.stat(sub).st_ino
    uses: list[Callable[[], bool]] = [
        lambda: read(folders, sub / "file") == "inside",
        lambda: write(folders, sub / "new", "new") is None,
        lambda: _inode(folders.open_folder(str(sub))) == inside,
        lambda: _inode(open_folder(sub)) == inside,
    ]
    results = {True: 0, False: 0}
    with swapped(sub, outside):
        end = time.monotonic() + RACE_SECONDS
        # A busy machine may give the other process no time: then the race goes on.
        while time.monotonic() < end or (not all(results.values()) and time.monotonic() < end + 10):
            for use in uses:
                try:
                    assert use(), "opened outside of the folders"
                    results[True] += 1
                except (OutsideFolders, OSError):
                    results[False] += 1
    assert not (outside / "new").exists()
    assert all(results.values()), "each use succeeds and is rejected at times"


def _inode(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)
