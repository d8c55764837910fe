"""A lock excludes other processes until its holder releases it or dies."""

import subprocess
import sys
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.locks import exclusive_lock
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
