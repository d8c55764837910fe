"""Meeting of the ranks of a trainer: their store, and torch's process groups."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (  # torch.distributed does not declare them
    FileStore,
    PrefixStore,
    Store,
    TCPStore,
)

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.runtime.http.hosts import is_loopback
from astraflow.trainer.ranks.launch import RankPlace

_ATTEMPT, _AGENT_STORE = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"
"""Set by torchrun: the number of its restarts, which share a store; whether it runs the store itself."""


def open_store(rank_place: RankPlace, *, timeout_s: float) -> Store:
    """Opens the ranks' store: a file of the trainer that started them, else a server of the first rank or of torchrun.
    Raises: Unavailable when the server does not answer."""
    if rank_place.store_file:
        file_store = FileStore(rank_place.store_file)
        file_store.set_timeout(timedelta(seconds=timeout_s))
        return file_store
    is_agents = os.environ.get(_AGENT_STORE) == "True"
    try:
        store = TCPStore(
            rank_place.address,
            rank_place.port,
            world_size=rank_place.ranks,
            is_master=rank_place.is_first and not is_agents,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except RuntimeError as problem:
        raise Unavailable(
            f"cannot reach the first rank at {rank_place.address}:{rank_place.port}: {problem}; start it first, "
            "and set MASTER_ADDR and MASTER_PORT to its address",
            code="trainer.first_rank_unreachable",
        ) from problem
    return _for_attempt(store)


def rank_device(device: str, rank_place: RankPlace) -> torch.device:
    """Returns the device of a rank: each rank of a host has its own GPU. device: `auto`, `cpu` or `cuda`.

    Raises: InvalidInput when the host has fewer GPUs than ranks.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cpu" or (device == "auto" and not gpus):
        return torch.device("cpu")
    if rank_place.local_rank >= gpus:
        raise InvalidInput(
            f"cannot run rank {rank_place.rank} on GPU {rank_place.local_rank}: torch finds {gpus} GPUs on this "
            "host; use at most as many ranks on a host as it has GPUs, or device = 'cpu'",
            code="trainer.not_enough_gpus",
        )
    return torch.device("cuda", rank_place.local_rank)


def join_process_group(store: Store, rank_place: RankPlace, device: torch.device, *, timeout_s: float) -> None:
    """Creates torch's default process group: gloo for tensors on the host, nccl for tensors on GPUs."""
    if is_loopback(rank_place.address):  # gloo and nccl would choose an interface by the host's name
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("group", store),
        rank=rank_place.rank,
        world_size=rank_place.ranks,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )


def _for_attempt(store: Store) -> Store:
    """Returns the store without the keys of earlier attempts: torchrun keeps it while it restarts the ranks."""
    return PrefixStore(f"attempt-{os.environ.get(_ATTEMPT, '0')}", store)
