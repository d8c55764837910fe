"""Communication between the ranks of one model about a publish: bytes over gloo, apart from training collectives."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist

from astraflow.contract.errors import Unavailable
from astraflow.weights.tensors import Buffer

Result = TypeVar("Result")


class GlooGroup:
    """Separate gloo group, which a thread may use while the next step runs. All methods are collective and block, and
    raise Unavailable when a rank is lost."""

    def __init__(self, group: dist.ProcessGroup | None, *, timeout_s: float) -> None:
        """group: the ranks of the model; None for all. timeout_s: how long ranks wait for another rank."""
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
        """True on the rank that acts for all ranks."""
        return self.rank == 0

    def all_gather(self, payload: bytes) -> list[bytes]:
        """Returns the payloads of all ranks, in rank order."""

        sizes = self.gather_sizes(len(payload))

        def gather() -> list[bytes]:
            longest = max(1, *sizes)
            messages = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.count)]
            dist.all_gather(messages, _tensor(payload.ljust(longest, b"\0")), group=self._group)
            return [message.numpy()[:size].tobytes() for message, size in zip(messages, sizes, strict=True)]

        return _run_collective(gather)

    def gather_sizes(self, size: int) -> list[int]:
        """Returns the sizes that all ranks pass, in rank order."""

        def gather() -> list[int]:
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
            dist.all_gather(sizes, torch.tensor([size], dtype=torch.int64), group=self._group)
            return [int(value.item()) for value in sizes]

        return _run_collective(gather)

    def broadcast(self, payload: bytes) -> bytes:
        """Returns the payload of the first rank, on every rank."""

        def send() -> bytes:
            size = torch.tensor([len(payload)], dtype=torch.int64)
            dist.broadcast(size, group=self._group, group_src=0)
            message = _tensor(payload) if self.is_first else torch.zeros(int(size.item()), dtype=torch.uint8)
            dist.broadcast(message, group=self._group, group_src=0)
            return message.numpy().tobytes()

        return _run_collective(send)

    def exchange(self, out: Mapping[int, Buffer], into: Mapping[int, Buffer]) -> None:
        """Sends buffers to ranks and fills others from ranks, concurrently. Buffers are contiguous uint8."""

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

        _run_collective(send_and_receive)


def _run_collective(work: Callable[[], Result]) -> Result:
    try:
        return work()
    except RuntimeError as problem:  # raised by gloo when a connection is closed or times out
        raise Unavailable(
            f"cannot publish from all ranks of the model: a rank was lost or timed out ({problem}); restart all ranks "
            "from one checkpoint",
            code="weights.rank_lost",
        ) from problem


def _tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
