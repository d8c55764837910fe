"""Renewal of credentials continues when the renewed credential cannot be stored."""

import errno
import os
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from astraflow.access.callers import Role
from astraflow.client import credential as module
from astraflow.client.credential import HeldCredential
from astraflow.client.credential_file import CredentialFile, StoredCredential
from astraflow.contract.errors import AstraFlowError, InvalidInput, StorageFull
from astraflow.runtime.clock import SystemClock
from astraflow.wire.channel import ServiceChannel
from astraflow.wire.pb import enrollment_pb2 as pb

pytestmark = pytest.mark.anyio

STORED = StoredCredential(
    address="host:1", dataflow="host:2", role=Role.NODE.value, name="n", credential="old", expires_at=1.0
)


def _fail_syncs(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (errno.ENOSPC, StorageFull, "storage.disk_full"),
        (errno.EDQUOT, StorageFull, "storage.disk_full"),
        (errno.EROFS, InvalidInput, "credential_file.not_writable"),
    ],
)
def test_a_full_disk_differs_from_an_unusable_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[AstraFlowError], code: str
) -> None:
    _fail_syncs(monkeypatch, number)
    with pytest.raises(kind) as caught:
        CredentialFile(tmp_path).write(STORED)
    assert caught.value.code == code


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_credential_that_cannot_be_stored_is_renewed_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    tokens = ["second", "first"]

    async def enroll(*_: Any) -> pb.EnrollReply:
        return pb.EnrollReply(credential=tokens.pop(), expires_at=2.0)

    monkeypatch.setattr(module, "_enroll", enroll)
    file = CredentialFile(tmp_path)
    file.write(STORED)
    held = module._persisted(
        HeldCredential("old", None, expires_at=1.0),
        file,
        address="host:1",
        dataflow="host:2",
        role=Role.NODE,
        name="n",
        clock=SystemClock(),
    )
    link = cast("ServiceChannel", None)  # used by `_enroll` only

    with monkeypatch.context() as full, capture_logs() as logs:
        _fail_syncs(full, number)
        await held.renew(link)
    assert held.secrets[0] == "first"
    assert file.read() == STORED
    assert "credential_not_stored" in [entry["event"] for entry in logs]

    await held.renew(link)
    stored = file.read()
    assert stored is not None
    assert stored.credential == "second"
