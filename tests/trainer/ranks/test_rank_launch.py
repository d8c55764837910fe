"""Ranks of one host start before the first rank imports torch, and never outlive a start that fails."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.trainer.ranks import launch
from astraflow.trainer.ranks.launch import (
    SECRET,
    SECRET_FILE,
    VISIBLE_GPUS,
    LaunchedRanks,
    RankPlace,
    launched_early,
    select_gpus,
    take_launched,
)
from tests.errors import raises_code

SLEEPS = (sys.executable, "-S", "-c", "import time; time.sleep(600)")


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "RANK_COMMAND", SLEEPS)
    monkeypatch.delenv("RANK", raising=False)


def environment(process: subprocess.Popen[bytes]) -> dict[str, str]:
    deadline = time.monotonic() + 60
    while b"time.sleep(600)" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():  # it is forked, but not replaced
        assert time.monotonic() < deadline
        time.sleep(0.01)
    variables = Path(f"/proc/{process.pid}/environ").read_bytes().decode().split("\0")
    return dict(variable.split("=", 1) for variable in variables if variable)


@pytest.mark.long
def test_the_module_imports_no_torch() -> None:
    code = "import sys, astraflow.trainer.ranks.launch, astraflow.trainer.service; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("kind", ["fsdp", "titan"])
def test_ranks_start_with_their_places_and_are_taken_once(kind: str) -> None:
    with launched_early({"kind": kind, "ranks": 3, "threads": 2}):
        launched = take_launched(ranks=3, threads=2)
        assert take_launched(ranks=3, threads=2) is None
    assert launched is not None
    try:
        assert sorted(launched.processes) == [1, 2]
        assert all(process.poll() is None for process in launched.processes.values())
        variables = environment(launched.processes[2])
        assert {name: variables[name] for name in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")} == {
            "RANK": "2",
            "WORLD_SIZE": "3",
            "OMP_NUM_THREADS": "2",
        }
        rank = RankPlace.from_environment(variables)
        assert rank is not None
        assert (rank.store_file, rank.secret) == (launched.place.store_file, launched.place.secret)
        assert launched.place.secret.decode() not in Path(f"/proc/{launched.processes[2].pid}/cmdline").read_text()
    finally:
        launched.close()


def test_ranks_that_are_not_taken_end(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[LaunchedRanks] = []
    launch = LaunchedRanks.launch

    def recorded(**options: object) -> LaunchedRanks:
        launches.append(launch(**options))  # type: ignore[arg-type]
        return launches[-1]

    monkeypatch.setattr(LaunchedRanks, "launch", recorded)
    with pytest.raises(ZeroDivisionError), launched_early({"kind": "fsdp"}):
        raise ZeroDivisionError
    with launched_early({"kind": "fsdp"}):
        assert take_launched(ranks=5, threads=1) is None  # others than these

    assert [process.poll() for launched in launches for process in launched.processes.values()] == [-9, -9]


@pytest.mark.parametrize("backend", [{"kind": "local"}, {"kind": "fsdp", "ranks": "2"}, {}])
def test_other_backends_start_no_ranks(backend: dict[str, str]) -> None:
    with launched_early(backend):
        assert take_launched(ranks=2, threads=1) is None


def test_ranks_of_a_scheduler_are_not_started_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with launched_early({"kind": "fsdp"}):
        assert take_launched(ranks=2, threads=1) is None


@pytest.mark.parametrize(
    ("visible", "backend", "expected"),
    [
        (None, {"kind": "fsdp", "gpus": (2, 3)}, "2,3"),
        ("4,5,GPU-ab", {"kind": "titan", "gpus": (2, 0)}, "GPU-ab,4"),
        ("4,5", {"kind": "fsdp"}, "4,5"),
        ("4,5", {"kind": "local", "gpus": (1,)}, "4,5"),
    ],
)
def test_only_the_gpus_of_the_backend_stay_visible(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, backend: dict[str, object], expected: str
) -> None:
    monkeypatch.delenv(VISIBLE_GPUS, raising=False)
    if visible is not None:
        monkeypatch.setenv(VISIBLE_GPUS, visible)
    select_gpus(backend)
    assert os.environ[VISIBLE_GPUS] == expected
    monkeypatch.delenv(VISIBLE_GPUS)  # set by the function


def test_the_gpus_of_a_rank_of_a_scheduler_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv(VISIBLE_GPUS, "4,5")
    select_gpus({"kind": "fsdp", "gpus": (1, 0)})
    assert os.environ[VISIBLE_GPUS] == "4,5"


def test_a_gpu_that_is_not_visible_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE_GPUS, "4,5")
    with raises_code(InvalidInput, "trainer.gpu_not_visible", "GPU 2"):
        select_gpus({"kind": "fsdp", "gpus": (0, 2)})


READS_THE_STORE = """
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for path in sys.argv[1:]:
    try:
        open(path, "rb").read()
    except PermissionError:
        print("refused")
"""


@pytest.mark.needs("root")
def test_another_user_can_read_neither_the_store_nor_the_secret() -> None:
    launched = LaunchedRanks.launch(ranks=2, threads=1, command=SLEEPS)
    try:
        paths = [
            launched.place.store_file,
            f"/proc/{launched.processes[1].pid}/environ",
            f"/proc/{os.getpid()}/environ",
        ]
        attack = subprocess.run([sys.executable, "-IS", "-c", READS_THE_STORE, *paths], capture_output=True, check=True)
        assert attack.stdout.split() == [b"refused"] * 3
    finally:
        launched.close()


def test_no_port_of_the_ranks_that_a_trainer_starts_is_open() -> None:
    before = len(psutil.Process().net_connections())
    launched = LaunchedRanks.launch(ranks=2, threads=1, command=SLEEPS)
    try:
        assert len(psutil.Process().net_connections()) == before
    finally:
        launched.close()


PLACE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}


def test_ranks_of_a_scheduler_need_a_secret_of_their_own(tmp_path: Path) -> None:
    with raises_code(InvalidInput, "trainer.no_ranks_secret"):
        RankPlace.from_environment(PLACE)
    with raises_code(InvalidInput, "trainer.no_ranks_secret"):
        RankPlace.from_environment({**PLACE, SECRET: " "})
    with raises_code(InvalidInput, "trainer.no_ranks_secret", "No such file"):
        RankPlace.from_environment({**PLACE, SECRET_FILE: str(tmp_path / "absent")})
    (tmp_path / "secret").write_bytes(b"\x00key")
    places = [
        RankPlace.from_environment({**PLACE, **variables})
        for variables in ({SECRET: "abc\n"}, {SECRET_FILE: str(tmp_path / "secret")})
    ]
    assert [rank and (rank.address, rank.port, rank.store_file) for rank in places] == [("host", 29500, "")] * 2
    assert places[0] is not None
    assert places[1] is not None
    assert places[0].secret == b"abc"
    assert len(places[1].secret) == 64, "a digest, and not the content"
    assert "abc" not in repr(places[0])
