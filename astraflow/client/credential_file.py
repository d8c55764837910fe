"""Persistent credential of a process, in a file that only its owner can read."""

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path

from astraflow.contract.errors import InvalidInput, StorageFull
from astraflow.runtime.folders.private_files import write_private
from astraflow.wire.channel import ClientTls
from astraflow.wire.errors import is_disk_full

FILE_NAME = "credential.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCredential:
    """Credential of a process and the addresses it is for."""

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


class CredentialFile:
    """Credential file of one process, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> StoredCredential | None:
        """Returns the stored credential; None without one. Raises: InvalidInput for an unreadable file."""
        path = self._folder / FILE_NAME
        try:
            content = json.loads(path.read_text())
            tls = content.pop("tls")
            client_tls = ClientTls(**{name: base64.b64decode(text) for name, text in tls.items()}) if tls else None
            return StoredCredential(**content, tls=client_tls)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as problem:
            raise InvalidInput(
                f"cannot read the credential in {str(path)!r}: {type(problem).__name__}; "
                "remove the file and join with a new token",
                code="credential_file.unreadable",
            ) from None

    def write(self, credential: StoredCredential) -> None:
        """Writes the file atomically, with mode 0600 from the start. Raises: StorageFull, InvalidInput."""
        tls = credential.tls
        pem = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key} if tls is not None else {}
        content = {name: getattr(credential, name) for name in ("address", "dataflow", "role", "name", "credential")}
        content |= {"expires_at": credential.expires_at}
        content |= {"tls": {name: base64.b64encode(value).decode() for name, value in pem.items() if value is not None}}
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(self._folder / FILE_NAME, json.dumps(content), is_durable=True)
        except OSError as problem:
            if is_disk_full(problem):
                raise StorageFull(
                    f"cannot store the credential in {str(self._folder)!r}: the disk is full; free some space",
                    code="storage.disk_full",
                ) from None
            raise InvalidInput(
                f"cannot store the credential in {str(self._folder)!r}: {problem.strerror}; use a writable folder",
                code="credential_file.not_writable",
            ) from None

    def delete(self) -> None:
        """Deletes the file of an invalid credential."""
        (self._folder / FILE_NAME).unlink(missing_ok=True)
