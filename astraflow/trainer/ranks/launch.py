"""Launch of the ranks of one host. Imports no torch, so that the other ranks start before the first imports it."""

import hashlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.processes.supervised import parent_variable
from astraflow.runtime.service import FOLLOW_PARENT

LOOPBACK = "127.0.0.1"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
SECRET, SECRET_FILE = "ASTRAFLOW_RANKS_SECRET", "ASTRAFLOW_RANKS_SECRET_FILE"
"""Environment variables: secret of the ranks of one trainer, or the file of it. The trainer sets the first one for the
ranks that it starts; a scheduler's job sets one of them for all ranks."""
STORE = "ASTRAFLOW_RANKS_STORE"
"""Environment variable: file of the ranks' store, for ranks that the trainer starts itself."""
RANK_COMMAND = (sys.executable, "-m", "astraflow.cli", "serve", "trainer-rank")
"""Command of a rank that the trainer starts itself."""
DEFAULT_RANKS, DEFAULT_THREADS = 2, 1
"""Defaults of the options `ranks` and `threads` of a backend with ranks."""
_KINDS = frozenset({"fsdp", "titan"})
"""Backends with ranks."""


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
    """Port of the ranks' store there; 0 with a store in a file."""
    store_file: str = ""
    """File of the ranks' store, which only processes of the trainer's user can open; empty for a store on a port."""
    secret: bytes = field(repr=False)
    """With which the ranks prove to each other that they belong to one trainer. It is never sent."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self | None:
        """Reads RANK, WORLD_SIZE, LOCAL_RANK (0 if absent), MASTER_ADDR and MASTER_PORT or the file of the store, and
        the secret of the ranks; None without RANK.

        Raises: InvalidInput when a variable is missing or is not a number in its range.
        """
        values = os.environ if environment is None else environment
        if "RANK" not in values:
            return None
        try:
            rank_place = cls(
                rank=int(values["RANK"]),
                ranks=int(values["WORLD_SIZE"]),
                local_rank=int(values.get("LOCAL_RANK", "0")),
                address=LOOPBACK if STORE in values else values["MASTER_ADDR"],
                port=0 if STORE in values else int(values["MASTER_PORT"]),
                store_file=values.get(STORE, ""),
                secret=_read_secret(values),
            )
        except (KeyError, ValueError) as problem:
            raise _bad_environment(f"{problem!r}") from problem
        is_port_valid = rank_place.store_file or 0 < rank_place.port < 2**16
        if not 0 <= rank_place.rank < rank_place.ranks or rank_place.local_rank < 0 or not is_port_valid:
            raise _bad_environment(f"rank {rank_place.rank} of {rank_place.ranks}, port {rank_place.port}")
        return rank_place

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
            STORE: self.store_file,
            SECRET: self.secret.decode(),
        }


@dataclass(slots=True, kw_only=True)
class LaunchedRanks:
    """Other ranks of this host, which import their modules and then wait for the first rank."""

    place: RankPlace
    """Place of the first rank."""
    threads: int
    """CPU threads of torch in each."""
    store_descriptor: int
    """Of the ranks' store: a file in memory without a name, which other users cannot open. It stays open until this
    process ends: torch opens the path again at each use, also when it frees the store, and would find another file."""
    processes: dict[int, subprocess.Popen[bytes]]
    """By rank."""

    @classmethod
    def launch(cls, *, ranks: int, threads: int, command: Sequence[str]) -> Self:
        """Starts the processes, each in its own session."""
        descriptor = os.memfd_create("astraflow-ranks")
        first_rank = RankPlace(
            rank=0,
            ranks=ranks,
            local_rank=0,
            address=LOOPBACK,
            port=0,
            store_file=f"/proc/{os.getpid()}/fd/{descriptor}",
            secret=secrets.token_hex(32).encode(),
        )
        environment = {**os.environ, **parent_variable(), "OMP_NUM_THREADS": str(threads)}
        environment.pop(FOLLOW_PARENT, None)  # its standard input is not a pipe
        processes = {
            rank: subprocess.Popen(  # noqa: S603 (a list of arguments, no shell)
                command,
                env={**environment, **first_rank.variables(rank=rank)},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            for rank in range(1, ranks)
        }
        return cls(place=first_rank, threads=threads, store_descriptor=descriptor, processes=processes)

    def close(self) -> None:
        """Kills the processes. Call it only while no store is open here."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        os.close(self.store_descriptor)


_early: list[LaunchedRanks] = []
"""At most one: launched, and not taken by the backend yet."""


def select_gpus(backend: Mapping[str, Any]) -> None:
    """Leaves only the GPUs of a backend's spec visible to this process and the ranks that it starts. Call it before
    CUDA is used. Without effect where a scheduler starts the ranks: it selects their GPUs. Raises: InvalidInput."""
    gpus = backend.get("gpus") or ()
    if not gpus or backend.get("kind") not in _KINDS or "RANK" in os.environ:
        return
    names = [name.strip() for name in os.environ.get(VISIBLE_GPUS, "").split(",") if name.strip()]
    if names and max(gpus) >= len(names):
        raise InvalidInput(
            f"cannot use GPU {max(gpus)}: {VISIBLE_GPUS} leaves {len(names)} GPUs; name lower ones in the backend's "
            "option gpus, or leave more visible",
            code="trainer.gpu_not_visible",
        )
    os.environ[VISIBLE_GPUS] = ",".join(names[gpu] if names else str(gpu) for gpu in gpus)


@contextmanager
def launched_early(backend: Mapping[str, Any]) -> Iterator[None]:
    """Starts the ranks of a backend's spec, whose modules the first rank has not imported; at the end kills those that
    were not taken. Without effect for a backend without ranks, and where a scheduler starts the ranks."""
    ranks, threads = backend.get("ranks", DEFAULT_RANKS), backend.get("threads", DEFAULT_THREADS)
    if backend.get("kind") in _KINDS and "RANK" not in os.environ and type(ranks) is type(threads) is int:
        _early.append(LaunchedRanks.launch(ranks=ranks, threads=threads, command=RANK_COMMAND))
    try:
        yield
    finally:
        while _early:
            _early.pop().close()


def take_launched(*, ranks: int, threads: int) -> LaunchedRanks | None:
    """Returns the ranks that were launched early; None without any. Kills them when they are others than these."""
    if not _early:
        return None
    launched = _early.pop()
    if (launched.place.ranks, launched.threads) == (ranks, threads):
        return launched
    launched.close()
    return None


def _read_secret(values: Mapping[str, str]) -> bytes:
    """Returns the secret of the ranks; of a file a digest. Raises: InvalidInput."""
    if text := values.get(SECRET, "").strip():
        return text.encode()
    if not (path := values.get(SECRET_FILE, "")):
        raise InvalidInput(
            f"cannot join the ranks of a trainer: {SECRET} and {SECRET_FILE} are not set, so that ranks could not "
            "recognize each other; set one of them to the same random text, or to a file of it that only you can read, "
            "for all ranks (openssl rand -hex 32)",
            code="trainer.no_ranks_secret",
        )
    try:
        content = Path(path).read_bytes()
    except OSError as problem:
        raise InvalidInput(
            f"cannot read the secret of the ranks from {path!r}: {problem.strerror}; check {SECRET_FILE}",
            code="trainer.no_ranks_secret",
        ) from problem
    return hashlib.sha256(b"astraflow ranks\0" + content).hexdigest().encode()


def _bad_environment(cause: str) -> InvalidInput:
    return InvalidInput(
        f"cannot join the ranks of a trainer: the environment is wrong ({cause}); set RANK (from 0), WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT, as torchrun does",
        code="trainer.bad_rank_environment",
    )
