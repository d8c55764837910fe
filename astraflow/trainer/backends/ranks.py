"""The ranks of one model, as they talk about what they publish: bytes over gloo, beside the training's collectives."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist

from astraflow.contract.errors import Unavailable
from astraflow.weights.tensors import Buffer

Result = TypeVar("Result")


class Ranks:
    """A gloo group of its own, so that a thread may use it while the next step runs. All methods are collective and
    block; each raises Unavailable when a rank is gone."""

    def __init__(self, group: dist.ProcessGroup | None, *, timeout_s: float) -> None:
        """group: the ranks of the model; None for all. timeout_s: how long a rank may keep the others waiting."""
        self.rank = dist.get_rank(group)
        self.count = dist.get_world_size(group)
        self._group = dist.new_group(
            dist.get_process_group_ranks(group),
            backend="gloo",
            timeout=timedelta(seconds=timeout_s),
            use_local_synchronization=True,
        )

    @property
    def is_first(self) -> bool:
        """Whether this is the one that speaks for all."""
        return self.rank == 0

    def gathered(self, said: bytes) -> list[bytes]:
        """What every rank says, in their order."""

        def gather() -> list[bytes]:
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
            dist.all_gather(sizes, torch.tensor([len(said)], dtype=torch.int64), group=self._group)
            longest = max(1, *(int(size.item()) for size in sizes))
            messages = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.count)]
            dist.all_gather(messages, _tensor(said.ljust(longest, b"\0")), group=self._group)
            pairs = zip(messages, sizes, strict=True)
            return [message.numpy()[: int(size.item())].tobytes() for message, size in pairs]

        return _together(gather)

    def told(self, said: bytes) -> bytes:
        """What the first rank says."""

        def tell() -> bytes:
            size = torch.tensor([len(said)], dtype=torch.int64)
            dist.broadcast(size, group=self._group, group_src=0)
            message = _tensor(said) if self.is_first else torch.zeros(int(size.item()), dtype=torch.uint8)
            dist.broadcast(message, group=self._group, group_src=0)
            return message.numpy().tobytes()

        return _together(tell)

    def swap(self, out: Mapping[int, Buffer], into: Mapping[int, Buffer]) -> None:
        """Send bytes to ranks and fill arrays with what others send here, all at once: uint8, contiguous."""

        def send_and_receive() -> None:
            works = [
                dist.irecv(torch.from_numpy(buffer), group=self._group, group_src=rank) for rank, buffer in into.items()
            ]
            works += [
                dist.isend(torch.from_numpy(buffer), group=self._group, group_dst=rank) for rank, buffer in out.items()
            ]
            for work in works:
                if work is not None:
                    work.wait()

        _together(send_and_receive)


def _together(work: Callable[[], Result]) -> Result:
    try:
        return work()
    except RuntimeError as problem:  # what gloo raises when a connection is closed, or time is up
        raise Unavailable(f"the ranks of the model lost each other while publishing: {problem}") from problem


def _tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
