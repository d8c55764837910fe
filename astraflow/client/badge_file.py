"""A credential that outlives its process: in one file that only its owner can read."""

import base64
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from astraflow.contract.errors import InvalidInput
from astraflow.wire.channel import ClientTls

FILE = "badge.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBadge:
    """What a process that was let in shows, and where."""

    address: str
    """`HOST:PORT` where it joined."""
    dataflow: str
    """`HOST:PORT` of the run's dataflow service."""
    role: str
    name: str
    credential: str = field(repr=False)
    expires_at: float
    """Unix seconds."""
    tls: ClientTls | None = field(default=None, repr=False)


class BadgeFile:
    """One process's, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> KeptBadge | None:
        """None when nothing is kept. Raises: InvalidInput for a file that cannot be read."""
        path = self._folder / FILE
        try:
            said = json.loads(path.read_text())
            tls = said.pop("tls")
            told = ClientTls(**{name: base64.b64decode(text) for name, text in tls.items()}) if tls else None
            return KeptBadge(**said, tls=told)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as problem:
            raise InvalidInput(
                f"{path} holds no credential that can be read ({type(problem).__name__}): "
                "remove it and join with a new token"
            ) from None

    def write(self, badge: KeptBadge) -> None:
        """In one step, readable by its owner alone from its first moment. Raises: InvalidInput."""
        tls = badge.tls
        pem = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key} if tls is not None else {}
        said = {name: getattr(badge, name) for name in ("address", "dataflow", "role", "name", "credential")}
        said |= {"expires_at": badge.expires_at}
        said |= {"tls": {name: base64.b64encode(value).decode() for name, value in pem.items() if value is not None}}
        partial = self._folder / f".{FILE}.partial"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial.unlink(missing_ok=True)  # one that was left behind may be readable by others
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(said, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._folder / FILE)
        except OSError as problem:
            raise InvalidInput(f"the credential cannot be kept in {self._folder}: {problem.strerror}") from None

    def forget(self) -> None:
        """It is good no more."""
        (self._folder / FILE).unlink(missing_ok=True)
