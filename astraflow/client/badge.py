"""What a process shows to the services of a run: got when it joins, renewed before it expires."""

import asyncio
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from astraflow.access.authority import checked_pin, new_request
from astraflow.access.callers import Role
from astraflow.access.credentials import claims_of, is_join_token
from astraflow.client.badge_file import BadgeFile, KeptBadge
from astraflow.contract.errors import (
    AstraFlowError,
    Conflict,
    InternalError,
    InvalidInput,
    NotAuthenticated,
    StorageFull,
)
from astraflow.runtime.aio import TRANSIENT, retry
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.logs import get_logger
from astraflow.wire.channel import ClientTls, Link, dial
from astraflow.wire.pb import enrollment_pb2 as pb
from astraflow.wire.pb.enrollment_pb2_grpc import EnrollmentStub
from astraflow.wire.pinning import pinned_authority

log = get_logger()

TIMEOUT_S = 10.0
RENEW_AT = 0.5
"""Of its life."""

NAME_S = 60.0
"""A node that was started again waits for so long until its earlier process is known to be gone."""

_PASSING = (*TRANSIENT, StorageFull, InternalError)


class Badge:
    """A token, with TLS a certificate too, and the links that show them.

    The run token and certificates of one's own stay what they are. A credential is renewed at half its life by `run`:
    links change over without dropping a call.
    """

    def __init__(
        self,
        token: str,
        tls: ClientTls | None,
        *,
        expires_at: float | None = None,
        clock: Clock | None = None,
        on_change: Callable[["Badge"], None] = lambda _: None,
    ) -> None:
        """expires_at: Unix seconds, of a credential; None for what is not renewed here. on_change: called when it was
        renewed."""
        self._token = token
        self._tls = tls
        self._expires_at = expires_at
        self._clock = clock or SystemClock()
        self._on_change = on_change
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()

    @property
    def shown(self) -> tuple[str, ClientTls | None, float | None]:
        """The secrets themselves, and Unix seconds until when they are good: for whoever keeps them."""
        return self._token, self._tls, self._expires_at

    def dial(self, address: str, **options: Any) -> Link:
        """A link that shows what this badge has, now and later. Raises: as `wire.channel.dial`."""
        link = dial(address, token=self._token, tls=self._tls, **options)
        self._links.add(link)
        return link

    async def run(self, dataflow: str) -> None:
        """Renew until cancelled. Raises: NotAuthenticated when it was revoked; what no retry helps."""
        async with self.dial(dataflow) as link:
            while self._expires_at is not None:
                await self._clock.sleep(max(1.0, RENEW_AT * (self._expires_at - self._clock.wall())))
                try:
                    await self.renew(link)
                except AstraFlowError as problem:
                    log.error("credential_not_renewed", problem=str(problem))
                    raise
            await asyncio.Event().wait()

    async def renew(self, link: Link, *, give_up_after_s: float | None = None) -> None:
        """Get another credential and certificate in time, and show those. link: to dataflow."""
        key, request = new_request()
        reply = await _enroll(link, pb.EnrollRequest(signing_request=request), "renewing", give_up_after_s, self._clock)
        self._token, self._expires_at = reply.credential, reply.expires_at
        if self._tls is not None:
            self._tls = ClientTls(ca=self._tls.ca, certificate=reply.certificate, key=key)
        for known in list(self._links):
            await known.change(token=self._token, tls=self._tls)
        self._on_change(self)
        log.info("credential_renewed", expires_at=self._expires_at)


async def badge_for(
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
    keep: Path | None = None,
) -> tuple[str, Badge]:
    """Join a run; returns where its dataflow service is, and what to show there.

    A join token, or the run token with `ca_hash` (the pin of the run's authority), is exchanged for a credential of
    the caller's own. The run token by itself is shown as it is: on loopback, or with a certificate of one's own
    (`tls`).

    keep: folder in which the credential is kept, with its key, for the next process of that name: that one needs no
    token as long as it comes back before the credential has expired or was revoked.
    Raises: NotAuthenticated, NotPermitted, InvalidInput, Conflict, saying what to do; Unavailable after
    `give_up_after_s`.
    """
    clock = clock or SystemClock()
    if not is_join_token(token) and not ca_hash:
        return address, Badge(token, tls)
    pin = _pin(token, ca_hash)
    file = BadgeFile(keep) if keep is not None else None
    kept = await _come_back(file, address, role, name, give_up_after_s, clock) if file is not None else None
    if kept is not None:
        return kept
    key, request = new_request()
    if pin:
        ca = await retry(
            lambda: pinned_authority(address, pin),
            what="looking for the run's authority",
            give_up_after_s=give_up_after_s,
            clock=clock,
        )
        tls = ClientTls(ca=ca)
    async with dial(address, token=token, tls=tls) as link:
        asked = pb.EnrollRequest(signing_request=request, role=role.value, name=name, pool=pool)
        reply = await retry(
            lambda: _enroll(link, asked, "joining", give_up_after_s, clock),
            what="waiting for the earlier process of this name",
            give_up_after_s=NAME_S if _may_come_again(token) else 0.0,
            retry_on=(Conflict,),
            clock=clock,
        )
    if tls is not None:
        tls = ClientTls(ca=tls.ca, certificate=reply.certificate, key=key)
    log.info("credential_received", role=role.value, name=name)
    dataflow = f"{address.rpartition(':')[0]}:{reply.port}"
    badge = Badge(reply.credential, tls, expires_at=reply.expires_at, clock=clock)
    if file is not None:
        badge = _keeping(badge, file, address=address, dataflow=dataflow, role=role, name=name, clock=clock)
    return dataflow, badge


async def _come_back(
    file: BadgeFile, address: str, role: Role, name: str, give_up_after_s: float | None, clock: Clock
) -> tuple[str, Badge] | None:
    """With what was kept, proven by renewing it; None when there is nothing, or nothing good any more."""
    kept = file.read()
    if kept is None or (kept.address, kept.role, kept.name) != (address, role.value, name):
        return None
    badge = Badge(kept.credential, kept.tls, expires_at=kept.expires_at, clock=clock)
    badge = _keeping(badge, file, address=address, dataflow=kept.dataflow, role=role, name=name, clock=clock)
    try:
        async with badge.dial(kept.dataflow) as link:
            await badge.renew(link, give_up_after_s=give_up_after_s)
    except NotAuthenticated as problem:
        log.warning("kept_credential_refused", problem=str(problem))
        file.forget()
        return None
    except TRANSIENT as problem:
        if kept.expires_at <= clock.wall():
            raise
        log.warning("kept_credential_not_renewed", problem=str(problem))  # it is good, and renewed later
    return kept.dataflow, badge


def _keeping(
    badge: Badge, file: BadgeFile, *, address: str, dataflow: str, role: Role, name: str, clock: Clock
) -> Badge:
    """The same badge, kept now and whenever it is renewed."""

    def keep(changed: Badge) -> None:
        credential, tls, expires_at = changed.shown
        file.write(
            KeptBadge(
                address=address,
                dataflow=dataflow,
                role=role.value,
                name=name,
                credential=credential,
                expires_at=expires_at or 0.0,
                tls=tls,
            )
        )

    credential, tls, expires_at = badge.shown
    keeping = Badge(credential, tls, expires_at=expires_at, clock=clock, on_change=keep)
    keep(keeping)
    return keeping


def _pin(token: str, ca_hash: str) -> str:
    told = claims_of(token).ca if is_join_token(token) else ""
    given = checked_pin(ca_hash) if ca_hash else ""
    if told and given and told != given:
        raise InvalidInput(f"--ca-hash is {given}, and the join token says {told}: they are of two runs")
    return told or given


def _may_come_again(token: str) -> bool:
    """Whether a process may get a credential for the name of an earlier one once that is gone."""
    return claims_of(token).is_reusable if is_join_token(token) else True


async def _enroll(
    link: Link, request: pb.EnrollRequest, what: str, give_up_after_s: float | None, clock: Clock
) -> pb.EnrollReply:
    stub = EnrollmentStub(link.channel)
    return await retry(
        lambda: link.call(stub.Enroll, request, timeout_s=TIMEOUT_S),
        what=what,
        give_up_after_s=give_up_after_s,
        retry_on=_PASSING,
        clock=clock,
    )
