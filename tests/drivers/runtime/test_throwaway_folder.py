"""The folder of a probe: where only the gateway writes, for a sandboxed program too, and gone afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drivers.contract.codec import Command
from drivers.runtime.cli_driver import run_to_end, throwaway_folder
from drivers.runtime.process import Spawner
from drivers.runtime.sandbox import Sandbox, unavailable


async def test_it_is_in_the_folder_of_the_spawner_and_removed(tmp_path: Path) -> None:
    async with throwaway_folder(Spawner(temporary=tmp_path)) as (folder, _):
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("x")
    assert not os.listdir(tmp_path)


@pytest.mark.skipif(unavailable() is not None, reason="needs Landlock")
async def test_a_program_in_the_sandbox_writes_in_its_own_only(tmp_path: Path) -> None:
    temporary = tmp_path / "data" / "temporary"
    temporary.mkdir(parents=True)
    spawner = Spawner(temporary=temporary).with_sandbox(Sandbox((), (tmp_path / "data",)))
    async with throwaway_folder(spawner) as (own, confined), throwaway_folder(spawner) as (other, _):
        for folder in (own, other):
            await run_to_end(Command(("/bin/sh", "-c", f"echo x > {folder}/file"), Path("/"), {}), confined)
        assert [folder.joinpath("file").exists() for folder in (own, other)] == [True, False]
