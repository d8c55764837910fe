"""Ownership of a ledger: by one process on a host, and by the service that started last on a shared database."""

import fcntl
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlmodel import Session

from astraflow.contract.errors import Conflict
from maintainer.fleet.ledger.tables import OwnerRow


def next_epoch(session: Session, process: str) -> int:
    """Makes `process` the owner; returns the epoch of its writes."""
    owner = session.get(OwnerRow, 1, with_for_update=True)
    epoch = 1 if owner is None else owner.epoch + 1
    identity = secrets.token_hex(5) if owner is None else owner.identity
    session.merge(OwnerRow(id=1, epoch=epoch, process=process, identity=identity))
    return epoch


def check_owner_row(session: Session, epoch: int | None) -> None:
    """Checks the owner, and locks its row until the end of the transaction, so that no takeover interrupts it.

    epoch: of the caller; None: no owner is checked. Raises: Conflict.
    """
    if epoch is None:
        return
    owner = session.get(OwnerRow, 1, with_for_update=True)
    if owner is None or owner.epoch != epoch:
        other = owner.process if owner is not None else "an unknown process that emptied it"
        raise Conflict(
            f"cannot write the fleet's ledger: it is now owned by {other}; run one fleet service per ledger",
            code="ledger.other_owner",
        )


class DirectoryLock:
    """Context manager that gives one process on this host exclusive use of a directory's ledger.

    In a database that several hosts share, the service that starts last takes over (`Ledger.take_ownership`).
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "fleet.lock"
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise Conflict(
                f"cannot use the directory {str(self._path.parent)!r}: another fleet service uses it; stop it "
                "or give another directory",
                code="ledger.directory_in_use",
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
