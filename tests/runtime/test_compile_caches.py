"""Folders of compiled code belong to this user alone."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from astraflow.runtime.folders.compile_caches import FOLDERS, USER_CACHE, is_private, private_cache_variables

OTHER_USER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "cache" / "compiled"


def mode(folder: str | Path) -> int:
    return stat.S_IMODE(Path(folder).stat().st_mode)


def test_each_library_has_a_private_folder_below_the_cache(cache: Path) -> None:
    variables = private_cache_variables({})

    assert variables == {name: str(cache / folder) for name, folder in FOLDERS.items()}
    assert {mode(folder) for folder in variables.values()} == {0o700}
    assert private_cache_variables(variables) == variables


def test_a_folder_that_the_user_chose_stays_unless_others_can_write_to_it(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o755)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "own")

    def chosen(name: str) -> str:
        return private_cache_variables({"TRITON_CACHE_DIR": str(tmp_path / name)})["TRITON_CACHE_DIR"]

    assert [chosen(name) for name in ("own", "new")] == [str(tmp_path / "own"), str(tmp_path / "new")]
    assert [chosen(name) for name in ("open", "link")] == [str(cache / "triton")] * 2
    assert mode(tmp_path / "new") == 0o700


@needs_root
@pytest.mark.parametrize("relative", ["compiled", "compiled/inductor", "."])
def test_a_folder_that_another_user_created_first_is_not_used(cache: Path, tmp_path: Path, relative: str) -> None:
    foreign = (cache.parent / relative).resolve()
    foreign.mkdir(parents=True)
    os.chown(foreign, OTHER_USER, OTHER_USER)

    used = Path(private_cache_variables({})["TORCHINDUCTOR_CACHE_DIR"])

    assert foreign not in (used, *used.parents)
    assert is_private(used)


@needs_root
def test_the_cache_of_the_user_is_replaced_where_another_user_created_it(cache: Path, tmp_path: Path) -> None:
    assert USER_CACHE not in private_cache_variables({})
    os.chown(tmp_path / "user" / ".cache", OTHER_USER, OTHER_USER)

    assert private_cache_variables({})[USER_CACHE] == str(cache)


def test_a_user_without_a_home_gets_new_folders(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.delenv("ASTRAFLOW_HOME")
    monkeypatch.setattr(Path, "home", unknown)
    used = private_cache_variables({})["TRITON_CACHE_DIR"]

    assert Path(used).parent.name.startswith("astraflow-compiled-")
    assert mode(used) == mode(Path(used).parent) == 0o700


def test_a_folder_without_rights_or_of_a_file_is_not_private(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert not is_private(tmp_path / "file")
    assert not is_private(tmp_path / "file" / "below")


@pytest.mark.real_processes
def test_every_service_and_what_it_starts_use_private_folders(cache: Path) -> None:
    program = (
        "import asyncio, os\nfrom astraflow.runtime.service import run_process\n"
        "async def main(stop): print(os.environ['TORCHINDUCTOR_CACHE_DIR'], os.environ['TRITON_CACHE_DIR'])\n"
        "run_process(main)"
    )

    variables = {name: value for name, value in os.environ.items() if name not in FOLDERS}  # torch sets its own
    started = subprocess.run([sys.executable, "-c", program], env=variables, check=True, capture_output=True, text=True)

    assert started.stdout.split() == [str(cache / "inductor"), str(cache / "triton")]
