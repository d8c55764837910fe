"""Program `astraflow` of a trainer and its ranks that kills one of them at points of the training loop.

    python --forked -m tests.trainer.ranks.fault_points FOLDER serve trainer ...

`FOLDER/faults.json` has the faults in order, one for each start of the trainer: as soon as a rank reaches its point in
a step, the rank `killed` gets SIGKILL. `FOLDER/kills` has a line for each that has happened.
"""

import functools
import inspect
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed.fsdp._fully_shard._fsdp_param_group as parameter_group
from torch import Tensor

from astraflow.algorithms.tokens import TokenScores
from astraflow.cli.main import main as run_astraflow
from astraflow.trainer import checkpoints
from astraflow.trainer.backends.rank_trainer import RankTrainer
from astraflow.trainer.batch_stream import BatchStream
from astraflow.trainer.checkpoints import Checkpoints
from astraflow.trainer.engines import fsdp
from astraflow.trainer.engines.fsdp import FsdpEngine
from astraflow.trainer.engines.optimizers import MasterOptimizer
from astraflow.trainer.ranks import launch
from astraflow.trainer.step.planner import StepPlanner
from astraflow.trainer.step.shares import Share
from astraflow.weights.publish.publisher import Publisher
from tests.fakes.forking import FORKED

POINTS: dict[str, tuple[tuple[int, ...], Any, str, bool]] = {
    "batch pulled": ((0,), BatchStream, "pull", True),
    "batch divided": ((0,), StepPlanner, "plan", True),
    "share unpacked": ((1,), Share, "decode", True),
    "forward pass": ((0, 1), fsdp._Root, "scores", False),
    "loss computed": ((0, 1), FsdpEngine, "learn", False),
    "gradient summed": ((0, 1), parameter_group, "foreach_reduce", False),
    "optimizer step": ((0, 1), MasterOptimizer, "update", False),
    "weights changed": ((0, 1), MasterOptimizer, "update", True),
    "state copied": ((0, 1), RankTrainer, "capture", True),
    "version copied": ((0, 1), RankTrainer, "snapshot", True),
    "checkpoint written": ((0, 1), RankTrainer, "write", True),
    "checkpoint unnamed": ((0,), checkpoints, "_write_manifest", True),
    "checkpoint durable": ((0,), Checkpoints, "save", True),
    "publish": ((0,), Publisher, "_send_first_accepted", False),
    "published": ((0,), Publisher, "_send_first_accepted", True),
    "acknowledgement": ((0,), BatchStream, "acknowledge", False),
    "acknowledged": ((0,), BatchStream, "acknowledge", True),
}
"""Point -> ranks that reach it, owner and name of the function, whether the point is after the call or before."""
BEGINS = ("batch pulled", "share unpacked")
"""Points at which a rank begins its first step. It reaches no other before: a start publishes and acknowledges too."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A kill of one rank when one reaches a point."""

    point: str
    reached_by: int
    killed: int


def all_faults() -> list[Fault]:
    """Returns a fault of each rank at each point: where only the first rank reaches it, it kills the other one too."""
    return [
        Fault(point=point, reached_by=rank, killed=killed)
        for point, (ranks, *_) in POINTS.items()
        for rank in ranks
        for killed in ((0, 1) if ranks == (0,) else (rank,))
    ]


def write_faults(folder: Path, faults: list[Fault]) -> None:
    """Plans the faults of a trainer."""
    (folder / "faults.json").write_text(json.dumps([asdict(fault) for fault in faults]))


def kills(folder: Path) -> list[str]:
    """Returns the points of the kills that have happened."""
    file = folder / "kills"
    return file.read_text().splitlines() if file.exists() else []


class FaultInjector:
    """Fault of one process: that of the number of kills when its first step begins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rank = int(os.environ.get("RANK", "0"))
        self._fault: Fault | None = None
        self._has_begun = False
        (folder / f"rank-{self._rank}").write_text(str(os.getpid()))

    def reach(self, point: str) -> None:
        """Kills the rank of the fault at its point."""
        if point in BEGINS and not self._has_begun:
            self._has_begun = True
            planned = json.loads((self._folder / "faults.json").read_text())[len(kills(self._folder)) :]
            self._fault = Fault(**planned[0]) if planned else None
        fault = self._fault
        if fault is None or (fault.point, fault.reached_by) != (point, self._rank):
            return
        self._fault = None
        with (self._folder / "kills").open("a") as file:
            file.write(f"{point}\n")
        os.kill(int((self._folder / f"rank-{fault.killed}").read_text()), signal.SIGKILL)

    def install(self) -> None:
        """Replaces the functions of all points."""
        for point, (_, owner, name, is_after) in POINTS.items():
            original = inspect.getattr_static(owner, name)
            is_class_method = isinstance(original, classmethod)
            function = original.__func__ if is_class_method else original
            wrapped = self._learning(point, function) if name == "learn" else self._wrapped(point, function, is_after)
            setattr(owner, name, classmethod(wrapped) if is_class_method else wrapped)

    def _wrapped(self, point: str, function: Callable[..., Any], is_after: bool) -> Callable[..., Any]:
        async def finish(work: Awaitable[Any]) -> Any:
            result = await work
            self.reach(point)
            return result

        @functools.wraps(function)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if not is_after:
                self.reach(point)
            result = function(*arguments, **options)
            if is_after and inspect.isawaitable(result):
                return finish(result)
            if is_after:
                self.reach(point)
            return result

        return wrapped

    def _learning(self, point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `learn` with a point between the loss and its backward pass."""

        def learn(engine: FsdpEngine, pack: Any, loss: Callable[[TokenScores], Tensor], **options: Any) -> Any:
            def computed(scores: TokenScores) -> Tensor:
                value = loss(scores)
                self.reach(point)
                return value

            return function(engine, pack, computed, **options)

        return learn


def main() -> None:
    """Runs `astraflow` with the arguments after the folder."""
    folder = Path(sys.argv.pop(1))
    module = "tests.trainer.ranks.fault_points"
    command = (sys.executable, FORKED, "-m", module, str(folder), "serve", "trainer-rank")
    launch.RANK_COMMAND = command  # type: ignore[assignment]  # a tuple of another length
    FaultInjector(folder).install()
    run_astraflow()


if __name__ == "__main__":
    main()
