"""Ownership of a ledger: by one process on a host, and by the service that started last on a shared database."""

import secrets
from contextlib import AbstractContextManager
from pathlib import Path

from sqlmodel import Session

from astraflow.contract.errors import Conflict
from astraflow.runtime.locks import exclusive_lock
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


def directory_lock(directory: Path) -> AbstractContextManager[None]:
    """Gives one process on this host exclusive use of a directory's ledger until the block ends. Raises: Conflict.

    In a database that several hosts share, the service that starts last takes over (`Ledger.take_ownership`).
    """
    refusal = Conflict(
        f"cannot use the directory {str(directory)!r}: another fleet service uses it; stop it, or give "
        "another directory",
        code="ledger.directory_in_use",
    )
    return exclusive_lock(directory / "fleet.lock", refusal=refusal)
