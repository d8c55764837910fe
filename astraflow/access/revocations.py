"""Revoked credentials, shared by the services of a run through a file that is checked on every call."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

FILE = "revoked.json"


class Revocations:
    """Ids of revoked credentials, each retained until the credential's expiry."""

    def __init__(self, folder: Path | None) -> None:
        """folder: of the run's authority, which its services share; None keeps the ids in this process."""
        self._path = folder / FILE if folder else None
        self._seen: tuple[int, int] | None = None
        self._until: dict[str, float] = {}

    def __contains__(self, credential: str) -> bool:
        self._refresh()
        return credential in self._until

    def add(self, credentials: Mapping[str, float], *, now: float) -> None:
        """Revokes credentials: id -> Unix seconds of its expiry. Effective in every service when this returns."""
        self._refresh()
        self._until = {credential: until for credential, until in {**self._until, **credentials}.items() if until > now}
        if self._path is not None:
            _write(self._path, self._until)

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return  # no revocation yet
        state = (status.st_mtime_ns, status.st_ino)
        if state != self._seen:
            self._until = json.loads(self._path.read_text())
            self._seen = state


def _write(path: Path, until: Mapping[str, float]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(dict(until), file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
