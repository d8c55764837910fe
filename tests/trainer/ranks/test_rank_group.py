"""The group joins real processes by gloo, carries commands and answers, and names the rank that is lost or hangs."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store  # torch.distributed does not declare them

from astraflow.contract.errors import AstraFlowError, CorruptData, InvalidInput, Unavailable
from astraflow.runtime import logs
from astraflow.runtime.clock import VirtualClock
from astraflow.trainer.ranks.channel import Channel, Message
from astraflow.trainer.ranks.launch import SECRET, LaunchedRanks, RankPlace
from astraflow.trainer.ranks.link import RankLink
from astraflow.trainer.ranks.rank_group import RankGroup
from astraflow.trainer.ranks.rendezvous import open_store
from tests.fakes.forking import ForkingProgram
from tests.trainer.ranks.group_rank import Work

COMMAND = (sys.executable, "-m", "tests.trainer.ranks.group_rank")
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


class Team:
    """A rank group, and the first rank's own work."""

    def __init__(self, rank_group: RankGroup) -> None:
        self.rank_group = rank_group
        self.work = Work(Message(facts={"offset": 1}), torch.device("cpu"))

    def sum(self, **facts: object) -> tuple[Message, list[Message]]:
        own = Message(facts=facts, arrays={"values": VALUES})
        return self.rank_group.call(
            "sum",
            lambda: self.work.sum(own),
            messages=[own] * (self.rank_group.ranks - 1),
            calls=lambda: self.work.calls,
        )


def configure_logs() -> None:
    """Logs to standard error, away from the output that tests read."""
    logs.configure()


def started(ranks: int = 2, *, timeout_s: float = 30.0, command: Sequence[str] = COMMAND) -> Team:
    rank_group = RankGroup.start(ranks=ranks, device="cpu", timeout_s=timeout_s, threads=1, command=command)
    rank_group.call("build", lambda: None, facts={"offset": 1})
    return Team(rank_group)


@pytest.fixture(scope="module")
def forked(rank_python: ForkingProgram) -> tuple[str, ...]:
    """`COMMAND` without the time of its imports. The kernel does not end these ranks with their trainer."""
    return (*rank_python.command, *COMMAND[1:])


@pytest.fixture(scope="module")
def team(forked: tuple[str, ...]) -> Iterator[Team]:
    """Three ranks, which the tests must leave working."""
    team = started(3, command=forked)
    yield team
    team.rank_group.close()
    assert not dist.is_initialized()


def test_all_ranks_take_part_and_answer_in_order(team: Team) -> None:
    own, answers = team.sum()

    assert [answer.facts["rank"] for answer in answers] == [1, 2]
    for message in (own, *answers):
        np.testing.assert_array_equal(message.arrays["total"], 3 * (VALUES + 1))


@pytest.mark.parametrize(("how", "expected"), [("corrupt", CorruptData), ("disk", OSError)])
def test_an_error_of_one_rank_is_raised_with_its_type_and_the_ranks_continue(
    team: Team, how: str, expected: type[Exception]
) -> None:
    with pytest.raises(expected, match="rank 2") as caught:
        team.rank_group.call("fail", lambda: None, facts={"rank": 2, "how": how})

    if isinstance(caught.value, AstraFlowError):
        assert caught.value.code == "checkpoint.damaged"
    else:
        assert isinstance(caught.value, OSError)
        assert caught.value.errno == 28
    team.sum()


def test_lanes_run_concurrently(team: Team) -> None:
    ended: list[float] = []

    def write() -> None:
        _, answers = team.rank_group.call("sleep", lambda: None, facts={"s": 1.0}, queue="write")
        ended.extend(answer.facts["at"] for answer in answers)

    thread = threading.Thread(target=write)
    thread.start()
    team.sum()
    summed_at = time.monotonic()
    thread.join()

    assert len(ended) == 2
    assert min(ended) > summed_at


@pytest.mark.parametrize("arrives", ["before", "after"])
def test_answers_to_calls_that_failed_are_not_kept(team: Team, arrives: str) -> None:
    links = team.rank_group._ranks

    def fill_disk() -> None:
        deadline = time.monotonic() + 60
        while arrives == "before" and not all(link.answers for link in links):
            assert time.monotonic() < deadline, "no answer"
            time.sleep(0.01)
        raise OSError(28, "No space left on device")

    for _ in range(5):
        with pytest.raises(OSError, match="No space"):
            team.rank_group.call("sleep", fill_disk, facts={"s": 0.05 if arrives == "after" else 0}, queue="write")
    team.rank_group.call("sleep", lambda: None, facts={"s": 0}, queue="write")  # a queue answers in order

    assert [link.answers for link in links] == [{}, {}]


def test_an_invalid_rank_environment_is_refused() -> None:
    with pytest.raises(InvalidInput):
        RankPlace.from_environment({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"})
    assert RankPlace.from_environment({}) is None


def run_trainer(scenario: str, python: Sequence[str] = (sys.executable,), **variables: str) -> tuple[int, str, str]:
    """Runs a program that is a first rank, since a process has one group of ranks; returns exit code and outputs."""
    program = f"import os\nfrom tests.trainer.ranks.test_rank_group import *\nconfigure_logs()\n{scenario}"
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [*python, "-c", program], capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    return done.returncode, done.stdout, done.stderr


LOSES_A_RANK = """
team = started(timeout_s={timeout_s}, command={command})
(pid,) = team.rank_group.processes.values()
try:
    team.sum(lost=1, signal={signal})
except Unavailable as problem:
    print(problem.code, problem)
team.rank_group.close(is_failed=True)
print("rank is gone:", not Path(f"/proc/{{pid}}").exists(), flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "timeout_s", "named"),
    [(signal.SIGKILL, 30.0, "rank 1 was killed by signal 9"), (signal.SIGSTOP, 3.0, "rank 1 sent nothing")],
)
def test_a_lost_or_stopped_rank_is_reported_and_all_processes_end(
    number: signal.Signals, timeout_s: float, named: str, rank_python: ForkingProgram, forked: tuple[str, ...]
) -> None:
    command = COMMAND if number == signal.SIGSTOP else forked  # the client of a stopped rank could not end it
    scenario = LOSES_A_RANK.format(timeout_s=timeout_s, signal=int(number), command=command)

    code, out, error = run_trainer(scenario, rank_python.command)

    assert code == 0, error
    assert out.startswith("trainer.rank_lost"), out + error
    assert named in out
    assert "rank is gone: True" in out


@pytest.mark.long
def test_a_rank_with_an_unexpected_error_is_reported(rank_python: ForkingProgram, forked: tuple[str, ...]) -> None:
    code, out, error = run_trainer(
        f"""
team = started(command={forked})
message = Message(facts={{"rank": 1, "how": "defect"}})
try:
    team.rank_group.call("fail", lambda: team.work.fail(message), facts=message.facts)
except Unavailable as problem:
    print(problem.code, problem, flush=True)
""",
        rank_python.command,
    )

    assert code == 0, error
    assert out.startswith("trainer.rank_failed"), out
    assert "rank 1 failed: ValueError: a defect" in out


@pytest.mark.long
def test_a_lost_rank_between_calls_ends_the_process(forked: tuple[str, ...]) -> None:
    code, _, error = run_trainer(
        f"""
import astraflow.trainer.ranks.rank_group as rank_group
rank_group.REPORT_S = 0.5
team = started(command={forked})
os.kill(*team.rank_group.processes.values(), signal.SIGKILL)
time.sleep(60)
"""
    )

    assert code == 1
    assert "[trainer.rank_lost]" in error


def test_a_main_call_that_is_stuck_ends_the_process_although_a_write_reported_the_loss(forked: tuple[str, ...]) -> None:
    code, out, error = run_trainer(
        f"""
import astraflow.trainer.ranks.rank_group as rank_group
rank_group.REPORT_S = 2
team = started(command={forked})
is_writing, is_reported = threading.Event(), threading.Event()
def write():
    try:
        team.rank_group.call("sleep", is_writing.set, facts={{"s": 600}}, queue="write")
    except Unavailable as problem:
        print(problem.code, flush=True)
        is_reported.set()
def stick():
    os.kill(*team.rank_group.processes.values(), signal.SIGKILL)
    assert is_reported.wait(60)
    time.sleep(30)  # as in a collective of nccl, which does not return
threading.Thread(target=write, daemon=True).start()
is_writing.wait()
team.rank_group.call("pid", stick)
"""
    )

    assert code == 1, error
    assert out.split() == ["trainer.rank_lost"]
    assert "[trainer.rank_lost]" in error
    assert "Traceback" not in error


def test_a_process_lives_on_when_a_write_reported_the_loss_and_no_main_call_is_open(
    rank_python: ForkingProgram, forked: tuple[str, ...]
) -> None:
    code, out, error = run_trainer(
        f"""
import astraflow.trainer.ranks.rank_group as rank_group
rank_group.REPORT_S = 2
team = started(command={forked})
for queue in ("write", "main"):
    try:
        team.rank_group.call("pid", lambda: os.kill(*team.rank_group.processes.values(), signal.SIGKILL), queue=queue)
        team.rank_group.call("sleep", lambda: None, facts={{"s": 600}}, queue=queue)
    except Unavailable as problem:
        print(problem.code, flush=True)
time.sleep(3)
print("alive", flush=True)
""",
        rank_python.command,
    )

    assert code == 0, error
    assert out.split() == ["trainer.rank_lost", "trainer.rank_lost", "alive"]


def test_time_in_which_the_machine_was_suspended_is_no_silence_of_a_rank() -> None:
    clock = VirtualClock()
    rank_place = RankPlace(rank=0, local_rank=0, ranks=2, address="127.0.0.1", port=0, secret=b"")
    rank_group = RankGroup(rank_place, cast("Store", None), timeout_s=60.0, clock=clock)
    rank = RankLink(number=1, channel=cast("Channel", None), process=None, heard_at=rank_group._now())
    rank_group._ranks = [rank]
    clock.advance(3600.0)
    assert rank_group._silent_ranks() == []
    for _ in range(60):
        clock.advance(1.0)
        assert rank_group._silent_ranks() == []
    clock.advance(1.0)
    assert rank_group._silent_ranks() == [rank]


def test_a_rank_that_does_not_start_is_reported() -> None:
    with pytest.raises(Unavailable) as caught:
        RankGroup.start(
            ranks=2, device="cpu", timeout_s=5, threads=1, command=(sys.executable, "-c", "raise SystemExit(3)")
        )
    assert caught.value.code == "trainer.rank_not_started"
    assert "exited with code 3" in str(caught.value)


@pytest.mark.long
def test_ranks_end_with_their_trainer_even_when_they_are_stopped() -> None:
    code, out, error = run_trainer(
        """
team = started(3)
print(*team.rank_group.processes.values(), flush=True)
os.kill(team.rank_group.processes[1], signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )

    assert code == -signal.SIGKILL, error
    for pid in map(int, out.split()):
        deadline = time.monotonic() + 20
        while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
            assert time.monotonic() < deadline, "the rank outlived its trainer"
            time.sleep(0.05)


@pytest.mark.long
def test_ranks_started_by_a_scheduler_join_by_their_environment(
    rank_python: ForkingProgram, forked: tuple[str, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    variables = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        SECRET: "of both",
    }
    other = subprocess.Popen(forked, env={**os.environ, **variables, "RANK": "1"}, stderr=subprocess.PIPE)
    try:
        code, out, error = run_trainer(
            """
team = started()
_, answers = team.sum()
print(answers[0].arrays["total"].sum(), dict(team.rank_group.processes), flush=True)
team.rank_group.close()
""",
            rank_python.command,
            **variables,
            RANK="0",
        )
        _, others_error = other.communicate(timeout=30)
    finally:
        other.kill()

    assert code == 0, error
    assert out.split(maxsplit=1) == ["42.0", "{}\n"]
    assert "rank_closed" in others_error.decode()


@pytest.mark.long
def test_ranks_that_were_launched_early_join(rank_python: ForkingProgram, forked: tuple[str, ...]) -> None:
    code, out, error = run_trainer(
        f"""
from astraflow.trainer.ranks import launch
launch.RANK_COMMAND = {forked}
with launch.launched_early({{"kind": "fsdp", "ranks": 2}}):
    (early,) = [process.pid for process in launch._early[0].processes.values()]
    team = started(command=())
    _, answers = team.sum()
    print(answers[0].arrays["total"].sum(), team.rank_group.processes == {{1: early}}, flush=True)
    team.rank_group.close()
""",
        rank_python.command,
    )

    assert code == 0, error
    assert out.split() == ["42.0", "True"]


def test_a_number_of_ranks_other_than_the_recipes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in {**variables, SECRET: "of all"}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(InvalidInput) as caught:
        RankGroup.start(ranks=2, device="cpu", timeout_s=5, threads=1)

    assert caught.value.code == "trainer.bad_rank_environment"


def test_a_store_that_is_freed_after_its_ranks_ended_writes_into_no_other_file(tmp_path: Path) -> None:
    launched = LaunchedRanks.launch(ranks=2, threads=1, command=(sys.executable, "-IS", "-c", "input()"))
    store = open_store(launched.place, timeout_s=5.0)
    store.set("key", "value")
    rank_group = RankGroup(launched.place, store, timeout_s=5.0)
    rank_group._processes = launched.processes
    rank_group.close(is_failed=True)
    files = [(tmp_path / str(number)).open("w+b") for number in range(50)]  # they take the numbers of closed files
    assert store.get("key") == b"value"
    del rank_group, store
    gc.collect()
    assert [file.read() for file in files] == [b""] * 50
    for file in files:
        file.close()
