"""Meeting of the ranks of a trainer: the environment that names them, their store, and torch's process groups."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # torch.distributed does not declare them

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.runtime.hosts import is_loopback

LOOPBACK = "127.0.0.1"

_ATTEMPT, _AGENT_STORE = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"
"""Set by torchrun: the number of its restarts, which share a store; whether it runs the store itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Place of a process among the ranks, as torchrun, Slurm or Kubernetes put it into the environment."""

    rank: int
    ranks: int
    local_rank: int
    """Number of the rank on its host: its GPU."""
    address: str
    """Host of the first rank."""
    port: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self | None:
        """Reads RANK, WORLD_SIZE, LOCAL_RANK (0 if absent), MASTER_ADDR and MASTER_PORT; None without RANK.

        Raises: InvalidInput when a variable is missing or is not a number in its range.
        """
        values = os.environ if environment is None else environment
        if "RANK" not in values:
            return None
        try:
            place = cls(
                rank=int(values["RANK"]),
                ranks=int(values["WORLD_SIZE"]),
                local_rank=int(values.get("LOCAL_RANK", "0")),
                address=values["MASTER_ADDR"],
                port=int(values["MASTER_PORT"]),
            )
        except (KeyError, ValueError) as problem:
            raise _bad_environment(f"{problem!r}") from problem
        if not 0 <= place.rank < place.ranks or place.local_rank < 0 or not 0 < place.port < 2**16:
            raise _bad_environment(f"rank {place.rank} of {place.ranks}, port {place.port}")
        return place

    @property
    def is_first(self) -> bool:
        """True for the trainer service's own process."""
        return self.rank == 0

    def variables(self, *, rank: int) -> dict[str, str]:
        """Returns the environment of another rank on this host."""
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def local_store(ranks: int, *, timeout_s: float) -> tuple[Store, RankPlace]:
    """Returns a store on a free port of the loopback interface only, and the first rank's place."""
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    store = TCPStore(
        LOOPBACK,
        port,
        world_size=ranks,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return _for_attempt(store), RankPlace(rank=0, ranks=ranks, local_rank=0, address=LOOPBACK, port=port)


def open_store(place: RankPlace, *, timeout_s: float) -> Store:
    """Connects to the ranks' store, which the first rank or torchrun runs. Raises: Unavailable when it does not
    answer."""
    is_agents = os.environ.get(_AGENT_STORE) == "True"
    try:
        store = TCPStore(
            place.address,
            place.port,
            world_size=place.ranks,
            is_master=place.is_first and not is_agents,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except RuntimeError as problem:
        raise Unavailable(
            f"cannot reach the first rank at {place.address}:{place.port}: {problem}; start it first, and set "
            "MASTER_ADDR and MASTER_PORT to its address",
            code="trainer.first_rank_unreachable",
        ) from problem
    return _for_attempt(store)


def rank_device(device: str, place: RankPlace) -> torch.device:
    """Returns the device of a rank: each rank of a host has its own GPU. device: `auto`, `cpu` or `cuda`.

    Raises: InvalidInput when the host has fewer GPUs than ranks.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cpu" or (device == "auto" and not gpus):
        return torch.device("cpu")
    if place.local_rank >= gpus:
        raise InvalidInput(
            f"cannot run rank {place.rank} on GPU {place.local_rank}: torch finds {gpus} GPUs on this host; use at "
            "most as many ranks on a host as it has GPUs, or device = 'cpu'",
            code="trainer.not_enough_gpus",
        )
    return torch.device("cuda", place.local_rank)


def join_process_group(store: Store, place: RankPlace, device: torch.device, *, timeout_s: float) -> None:
    """Creates torch's default process group: gloo for tensors on the host, nccl for tensors on GPUs."""
    if is_loopback(place.address):  # gloo and nccl would choose an interface by the host's name
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("group", store),
        rank=place.rank,
        world_size=place.ranks,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )


def _for_attempt(store: Store) -> Store:
    """Returns the store without the keys of earlier attempts: torchrun keeps it while it restarts the ranks."""
    return PrefixStore(f"attempt-{os.environ.get(_ATTEMPT, '0')}", store)


def _bad_environment(cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot join the ranks of a trainer: the environment is wrong ({cause}); set RANK (from 0), WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT, as torchrun does",
        code="trainer.bad_rank_environment",
    )
