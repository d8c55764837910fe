"""Credential that authenticates a process to the services of a run: issued on joining, renewed before it expires."""

import asyncio
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from astraflow.access.authority import checked_pin, new_request
from astraflow.access.callers import Role
from astraflow.access.credentials import is_join_token, read_claims
from astraflow.client.credential_file import CredentialFile, StoredCredential
from astraflow.contract.errors import (
    AstraFlowError,
    Conflict,
    InternalError,
    InvalidInput,
    NotAuthenticated,
    StorageFull,
)
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import TRANSIENT, retry
from astraflow.wire.channel import ClientTls, ServiceChannel, dial
from astraflow.wire.pb import enrollment_pb2 as pb
from astraflow.wire.pb.enrollment_pb2_grpc import EnrollmentStub
from astraflow.wire.pinning import pinned_authority

log = get_logger()

TIMEOUT_S = 10.0
RENEW_AT_FRACTION = 0.5
"""Share of the credential's lifetime after which it is renewed."""

NAME_WAIT_S = 60.0
"""Time for which a restarted node waits until its previous process is known to have ended."""

_RETRYABLE = (*TRANSIENT, StorageFull, InternalError)


class HeldCredential:
    """A token, with TLS also a certificate, and the channels that use them.

    The run token and the caller's own certificates never change. `run` renews a credential at half its lifetime;
    channels switch over without dropping a call.
    """

    def __init__(
        self,
        token: str,
        tls: ClientTls | None,
        *,
        expires_at: float | None = None,
        clock: Clock | None = None,
        on_change: Callable[["HeldCredential"], None] = lambda _: None,
    ) -> None:
        """expires_at: Unix seconds, of a credential; None for tokens that are not renewed here. on_change: called after
        each renewal."""
        self._token = token
        self._tls = tls
        self._expires_at = expires_at
        self._clock = clock or SystemClock()
        self._on_change = on_change
        self._channels: weakref.WeakSet[ServiceChannel] = weakref.WeakSet()

    @property
    def secrets(self) -> tuple[str, ClientTls | None, float | None]:
        """Token, TLS files and expiry in Unix seconds, for storage."""
        return self._token, self._tls, self._expires_at

    def dial(self, address: str, **options: Any) -> ServiceChannel:
        """Returns a channel that uses this credential, renewals included. Raises: as `wire.channel.dial`."""
        link = dial(address, token=self._token, tls=self._tls, **options)
        self._channels.add(link)
        return link

    async def run(self, dataflow: str) -> None:
        """Renews the credential until cancelled. Raises: NotAuthenticated when it was revoked; other permanent
        errors."""
        async with self.dial(dataflow) as link:
            while self._expires_at is not None:
                await self._clock.sleep(max(1.0, RENEW_AT_FRACTION * (self._expires_at - self._clock.wall())))
                try:
                    await self.renew(link)
                except AstraFlowError as problem:
                    log.error("credential_not_renewed", problem=str(problem))
                    raise
            await asyncio.Event().wait()

    async def renew(self, link: ServiceChannel, *, give_up_after_s: float | None = None) -> None:
        """Replaces credential and certificate, also in all channels. link: a channel to dataflow."""
        key, request = new_request()
        reply = await _enroll(link, pb.EnrollRequest(signing_request=request), "renewing", give_up_after_s, self._clock)
        self._token, self._expires_at = reply.credential, reply.expires_at
        if self._tls is not None:
            self._tls = ClientTls(ca=self._tls.ca, certificate=reply.certificate, key=key)
        for channel in list(self._channels):
            await channel.update_credentials(token=self._token, tls=self._tls)
        self._on_change(self)
        log.info("credential_renewed", expires_at=self._expires_at)


async def join_run(
    address: str,
    *,
    token: str,
    tls: ClientTls | None = None,
    ca_hash: str = "",
    role: Role,
    name: str,
    pool: str = "",
    give_up_after_s: float | None = None,
    clock: Clock | None = None,
    credential_folder: Path | None = None,
) -> tuple[str, HeldCredential]:
    """Joins a run; returns the address of its dataflow service and the credential for it.

    A join token, or the run token with `ca_hash` (the pin of the run's authority), is exchanged for a credential of the
    caller. The run token alone is used directly: on loopback, or with the caller's own certificate (`tls`).

    credential_folder: folder in which the credential is stored with its key, for the next process of that name, which
    needs no token until the credential expires or is revoked. Raises: NotAuthenticated, NotPermitted, InvalidInput,
    Conflict, StorageFull, with the remedy; Unavailable after `give_up_after_s`.
    """
    clock = clock or SystemClock()
    if not is_join_token(token) and not ca_hash:
        return address, HeldCredential(token, tls)
    pin = _pin(token, ca_hash)
    file = CredentialFile(credential_folder) if credential_folder is not None else None
    rejoined = await _rejoin(file, address, role, name, give_up_after_s, clock) if file is not None else None
    if rejoined is not None:
        return rejoined
    key, request = new_request()
    if pin:
        ca = await retry(
            lambda: pinned_authority(address, pin),
            what="verifying the run's authority",
            give_up_after_s=give_up_after_s,
            clock=clock,
        )
        tls = ClientTls(ca=ca)
    async with dial(address, token=token, tls=tls) as link:
        enrollment = pb.EnrollRequest(signing_request=request, role=role.value, name=name, pool=pool)
        reply = await retry(
            lambda: _enroll(link, enrollment, "joining", give_up_after_s, clock),
            what="waiting for the previous process of this name",
            give_up_after_s=NAME_WAIT_S if _may_reuse_name(token) else 0.0,
            retry_on=(Conflict,),
            clock=clock,
        )
    if tls is not None:
        tls = ClientTls(ca=tls.ca, certificate=reply.certificate, key=key)
    log.info("credential_received", role=role.value, name=name)
    dataflow = f"{address.rpartition(':')[0]}:{reply.port}"
    credential = HeldCredential(reply.credential, tls, expires_at=reply.expires_at, clock=clock)
    if file is not None:
        file.write(_stored(credential, address=address, dataflow=dataflow, role=role, name=name))
        credential = _persisted(credential, file, address=address, dataflow=dataflow, role=role, name=name, clock=clock)
    return dataflow, credential


async def _rejoin(
    file: CredentialFile, address: str, role: Role, name: str, give_up_after_s: float | None, clock: Clock
) -> tuple[str, HeldCredential] | None:
    """Rejoins with the stored credential, verified by a renewal; None when there is none or it is no longer valid."""
    stored = file.read()
    if stored is None or (stored.address, stored.role, stored.name) != (address, role.value, name):
        return None
    credential = HeldCredential(stored.credential, stored.tls, expires_at=stored.expires_at, clock=clock)
    credential = _persisted(
        credential, file, address=address, dataflow=stored.dataflow, role=role, name=name, clock=clock
    )
    try:
        async with credential.dial(stored.dataflow) as link:
            await credential.renew(link, give_up_after_s=give_up_after_s)
    except NotAuthenticated as problem:
        log.warning("stored_credential_refused", problem=str(problem))
        file.delete()
        return None
    except TRANSIENT as problem:
        if stored.expires_at <= clock.wall():
            raise
        log.warning("stored_credential_not_renewed", problem=str(problem))  # still valid, renewed later
    return stored.dataflow, credential


def _persisted(
    held: HeldCredential, file: CredentialFile, *, address: str, dataflow: str, role: Role, name: str, clock: Clock
) -> HeldCredential:
    """Returns the credential, stored in the file after each renewal.

    A file that cannot be written then is logged: the process has a valid credential and must renew it in time.
    """

    def store(changed: HeldCredential) -> None:
        try:
            file.write(_stored(changed, address=address, dataflow=dataflow, role=role, name=name))
        except AstraFlowError as problem:
            log.error("credential_not_stored", problem=str(problem))

    credential, tls, expires_at = held.secrets
    return HeldCredential(credential, tls, expires_at=expires_at, clock=clock, on_change=store)


def _stored(held: HeldCredential, *, address: str, dataflow: str, role: Role, name: str) -> StoredCredential:
    credential, tls, expires_at = held.secrets
    return StoredCredential(
        address=address,
        dataflow=dataflow,
        role=role.value,
        name=name,
        credential=credential,
        expires_at=expires_at or 0.0,
        tls=tls,
    )


def _pin(token: str, ca_hash: str) -> str:
    token_pin = read_claims(token).ca if is_join_token(token) else ""
    given_pin = checked_pin(ca_hash) if ca_hash else ""
    if token_pin and given_pin and token_pin != given_pin:
        raise InvalidInput(
            f"cannot join: --ca-hash is {given_pin!r}, but the join token has {token_pin!r}; use both of the same run",
            code="join.pin_mismatch",
        )
    return token_pin or given_pin


def _may_reuse_name(token: str) -> bool:
    """Returns whether a process may take over the name of an earlier process that has ended."""
    return read_claims(token).is_reusable if is_join_token(token) else True


async def _enroll(
    link: ServiceChannel, request: pb.EnrollRequest, what: str, give_up_after_s: float | None, clock: Clock
) -> pb.EnrollReply:
    stub = EnrollmentStub(link.channel)
    return await retry(
        lambda: link.call(stub.Enroll, request, timeout_s=TIMEOUT_S),
        what=what,
        give_up_after_s=give_up_after_s,
        retry_on=_RETRYABLE,
        clock=clock,
    )
