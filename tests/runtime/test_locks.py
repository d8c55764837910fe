"""A lock excludes other processes until its holder releases it or dies."""

import fcntl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.runtime import locks
from astraflow.runtime.folders.run_folders import RunFolder
from astraflow.runtime.locks import exclusive_lock, is_locked
from tests.errors import raises_code

REFUSAL = InvalidInput("cannot write: another process does", code="test.in_use")
HOLDER = """
import sys
from pathlib import Path
from astraflow.runtime.locks import exclusive_lock
from astraflow.contract.errors import InvalidInput
with exclusive_lock(Path(sys.argv[1]), refusal=InvalidInput("taken")):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_holder_is_refused_until_the_first_releases_the_lock(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path / "lock", refusal=REFUSAL):
        with raises_code(InvalidInput, "test.in_use"), exclusive_lock(tmp_path / "lock", refusal=REFUSAL):
            raise AssertionError("it was let in")
        with exclusive_lock(tmp_path / "another", refusal=REFUSAL):
            pass
    with exclusive_lock(tmp_path / "lock", refusal=REFUSAL):
        pass


def test_a_killed_holder_releases_the_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with raises_code(InvalidInput, "test.in_use"), exclusive_lock(tmp_path / "lock", refusal=REFUSAL):
            raise AssertionError("it was let in")
        holder.kill()
        holder.wait()
        with exclusive_lock(tmp_path / "lock", refusal=REFUSAL):
            pass


def test_a_probe_of_the_lock_does_not_refuse_it_to_a_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    monkeypatch.setattr(locks, "RETRY_S", 30.0)
    with path.open("w+") as probe:
        fcntl.flock(probe, fcntl.LOCK_SH)
        end = threading.Timer(0.2, fcntl.flock, (probe, fcntl.LOCK_UN))
        end.start()
        with exclusive_lock(path, refusal=REFUSAL):
            assert is_locked(path)
        end.join()
    assert not is_locked(path)


def test_a_lasting_shared_lock_is_refused_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    monkeypatch.setattr(locks, "RETRY_S", 0.05)
    with path.open("w+") as shared:
        fcntl.flock(shared, fcntl.LOCK_SH)
        with raises_code(InvalidInput, "test.in_use"), exclusive_lock(path, refusal=REFUSAL):
            raise AssertionError("it was let in")


def test_a_run_is_active_while_its_lock_is_held(tmp_path: Path) -> None:
    assert not RunFolder(tmp_path).is_active
    with exclusive_lock(tmp_path / "lock", refusal=REFUSAL):
        assert RunFolder(tmp_path).is_active
    assert not RunFolder(tmp_path).is_active
