"""The folder of a running node stays; that of a killed one is removed when the next engine starts."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow.models import models
from astraflow.raas.engines.server import model_folder
from astraflow.raas.engines.server.model_folder import ModelFolder, remove_unused_folders
from astraflow.weights.shared_memory import CREATION_GRACE_S
from tests import make_torch

_HOLDER = """
import contextlib, time
from astraflow.raas.engines.server.model_folder import _create_locked_folder
with contextlib.ExitStack() as stack:
    print(_create_locked_folder(stack), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Process that holds a folder, and the folder."""
    with subprocess.Popen([sys.executable, "-c", _HOLDER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        yield process, folder
        process.kill()
    remove_unused_folders()


def test_the_next_engine_removes_the_folder_of_a_killed_process(holder: tuple[subprocess.Popen[str], Path]) -> None:
    process, folder = holder
    (folder / "model.safetensors").write_bytes(b"weights")
    ModelFolder(make_torch.TINY).close()
    assert (folder / "model.safetensors").exists()  # while the process runs
    process.kill()
    process.wait()
    second = ModelFolder(make_torch.TINY)
    try:
        assert not folder.exists()
        assert (second.path / "config.json").exists()
    finally:
        second.close()
    assert not second.path.exists()


def test_a_folder_without_a_lock_is_removed_when_it_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "MEMORY_FOLDER", tmp_path)
    young, old, other = (tmp_path / name for name in ("astraflow-engine-a", "astraflow-engine-b", "another"))
    for folder in (young, old, other):
        folder.mkdir()
    before = time.time() - CREATION_GRACE_S - 1
    for folder in (old, other):
        os.utime(folder, (before, before))

    assert remove_unused_folders() == 1
    assert sorted(tmp_path.iterdir()) == [other, young]


def test_symbolic_links_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "MEMORY_FOLDER", tmp_path / "shared")
    target = tmp_path / "target"
    (tmp_path / "shared").mkdir()
    target.mkdir()
    (tmp_path / "shared" / "astraflow-engine-a").symlink_to(target)

    assert remove_unused_folders() == 0
    assert target.exists()


def test_a_model_that_cannot_be_written_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ValueError("no such model")

    monkeypatch.setattr(model_folder, "MEMORY_FOLDER", tmp_path)
    monkeypatch.setattr(models, "build", fail)
    with pytest.raises(ValueError, match="no such model"):
        ModelFolder(make_torch.TINY)
    assert not list(tmp_path.iterdir())
