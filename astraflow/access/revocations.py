"""Revoked credentials, shared by the services of a run through a file that is checked on every call."""

import json
from collections.abc import Mapping
from pathlib import Path

from astraflow.contract.errors import Unavailable
from astraflow.runtime.folders.private_files import write_private
from astraflow.runtime.logs import get_logger

log = get_logger()

FILE = "revoked.json"


class Revocations:
    """Ids of revoked credentials, each retained until the credential's expiry.

    Revocations whose file cannot be written hold in this process at once, and in the others once `publish` succeeds.
    """

    def __init__(self, folder: Path | None) -> None:
        """folder: of the run's authority, which its services share; None keeps the ids in this process."""
        self._path = folder / FILE if folder else None
        self._seen: tuple[int, int] | None = None
        self._until: dict[str, float] = {}
        self._unwritten: dict[str, float] = {}
        """Revoked credentials that are not in the file yet: id -> Unix seconds of expiry."""
        self.problem = ""
        """Why the file lacks revocations, with a remedy; empty while it has all."""

    def __contains__(self, credential: str) -> bool:
        """Raises: Unavailable when the file cannot be read: nothing is authenticated without it."""
        if credential in self._unwritten:
            return True
        self._refresh()
        return credential in self._until

    def add(self, credentials: Mapping[str, float], *, now: float) -> None:
        """Revokes credentials: id -> Unix seconds of its expiry. Effective in this process when this returns, and in
        every service unless there is a `problem`."""
        self._unwritten |= credentials
        self.publish(now=now)

    def publish(self, *, now: float) -> None:
        """Writes the revocations that the file lacks. Call it again while there is a `problem`."""
        if not self._unwritten:
            return
        try:
            self._refresh()
            every = {**self._until, **self._unwritten}
            self._until = {credential: until for credential, until in every.items() if until > now}
            if self._path is not None:
                write_private(self._path, json.dumps(self._until), is_durable=True)
        except (OSError, Unavailable) as cause:
            if not self.problem:
                log.error("revocations_not_written", credentials=len(self._unwritten), problem=str(cause))
            self.problem = (
                f"cannot publish {len(self._unwritten)} revoked credentials to the other services, which accept them "
                f"meanwhile: {cause}; make {str(self._path)!r} writable: it is tried again all the time"
            )
        else:
            if self.problem:
                log.info("revocations_written", credentials=len(self._unwritten))
            self._unwritten, self.problem = {}, ""

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            status = self._path.stat()
            state = (status.st_mtime_ns, status.st_ino)
            if state != self._seen:
                self._until = dict(json.loads(self._path.read_text()))
                self._seen = state
        except FileNotFoundError:
            return  # no revocation yet
        except (OSError, ValueError, TypeError) as problem:
            raise Unavailable(
                f"cannot read the revoked credentials from {str(self._path)!r}: {problem}; repair the file or its "
                "permissions",
                code="credential.unreadable_revocations",
            ) from problem
