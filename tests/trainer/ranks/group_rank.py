"""Rank of a trainer for the tests of the rank group: sums, sleeps, fails. Run as a program by `RankGroup`."""

import os
import signal
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.distributed as dist

from astraflow.contract.errors import CorruptData
from astraflow.runtime import logs
from astraflow.trainer.ranks.channel import Message
from astraflow.trainer.ranks.process import run_rank


class Work:
    """Commands that a test gives to every rank."""

    calls = 0

    def __init__(self, message: Message, device: torch.device) -> None:
        self.offset = float(message.facts["offset"])

    @property
    def commands(self) -> Mapping[str, Callable[[Message], Message]]:
        return {"sum": self.sum, "fail": self.fail, "sleep": self.sleep, "pid": self.pid}

    def sum(self, message: Message) -> Message:
        """Sums an array over the ranks; before that the rank `lost` gets a signal."""
        self.calls += 1
        if message.facts.get("lost") == dist.get_rank():
            os.kill(os.getpid(), message.facts.get("signal", signal.SIGKILL))
        total = torch.from_numpy(message.arrays["values"]) + self.offset
        dist.all_reduce(total)
        return Message(facts={"rank": dist.get_rank()}, arrays={"total": total.numpy()})

    def fail(self, message: Message) -> Message:
        """Fails on one rank, before a collective operation or without one."""
        if dist.get_rank() == message.facts["rank"]:
            match message.facts["how"]:
                case "corrupt":
                    raise CorruptData("cannot read a file: it is damaged", code="checkpoint.damaged")
                case "disk":
                    raise OSError(28, "No space left on device")
                case "defect":
                    raise ValueError("a defect")
        if message.facts["how"] == "defect":
            dist.all_reduce(torch.zeros(1))
        return Message(facts={})

    def sleep(self, message: Message) -> Message:
        """Waits in the queue of writes."""
        time.sleep(message.facts["s"])
        return Message(facts={"at": time.monotonic()})

    def pid(self, message: Message) -> Message:
        """Returns the process id."""
        return Message(facts={"pid": os.getpid()}, arrays={"empty": np.zeros((0, 3), np.int64)})


if __name__ == "__main__":
    logs.configure()
    torch.set_num_threads(1)
    run_rank(Work)
