"""Who is let in: reads what a caller shows, and says who it is."""

import hmac

from astraflow.access.authority import Authority, shown_by
from astraflow.access.callers import RUN_TOKEN, Caller, Role
from astraflow.access.credentials import Seal, is_credential
from astraflow.access.revocations import Revocations
from astraflow.contract.errors import NotAuthenticated
from astraflow.runtime.clock import Clock, SystemClock


class Keeper:
    """Knows the run token, the credentials that are sealed with it, and which of them are revoked."""

    def __init__(
        self,
        run_token: str,
        *,
        authority: Authority | None = None,
        wants_certificate: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """authority: the run's, where it has one. wants_certificate: who calls shows one of it, which belongs to the
        credential; TLS has proven that it is of the authority."""
        self._run_token = run_token.encode()
        self._seal = Seal(run_token)
        self._revoked = Revocations(authority.folder if authority else None)
        self._wants_certificate = wants_certificate
        self._clock = clock or SystemClock()

    @property
    def clock(self) -> Clock:
        """By which credentials expire."""
        return self._clock

    @property
    def wants_certificate(self) -> bool:
        """Whether callers must show one."""
        return self._wants_certificate

    @property
    def seal(self) -> Seal:
        """What credentials of this run are made with."""
        return self._seal

    @property
    def revoked(self) -> Revocations:
        """What is not good any more; whoever revokes adds to it."""
        return self._revoked

    def check_token(self, token: str) -> None:
        """Check a token before anything else of its call is read. Raises: NotAuthenticated if no certificate helps."""
        self._holder(token)

    def caller(self, token: str, certificate: bytes | None) -> Caller:
        """Who shows this token, and this certificate (PEM). Raises: NotAuthenticated, saying what would do."""
        caller = self._holder(token)
        if self._wants_certificate:
            self._check_certificate(caller, certificate)
        return caller

    def _holder(self, token: str) -> Caller:
        if hmac.compare_digest(token.encode(), self._run_token):
            return RUN_TOKEN
        if not is_credential(token):
            raise NotAuthenticated("the run token is missing or wrong: take the one that the run printed at its start")
        caller = self._seal.read(token)
        if caller.role is Role.JOINER:
            return caller  # good for enrolling only, where the ledger of join tokens is, and refusals are noted
        if caller.expires_at <= self._clock.wall():
            raise NotAuthenticated("the credential has expired: mint a join token (astraflow token), and join with it")
        if caller.id in self._revoked:
            raise NotAuthenticated(
                "the credential was revoked: whoever holds it left or was retired; mint a join token to come back"
            )
        return caller

    def _check_certificate(self, caller: Caller, certificate: bytes | None) -> None:
        if certificate is None:
            raise NotAuthenticated("no certificate was shown: join with a token, which brings one")
        shown = shown_by(certificate)
        if shown.expires_at <= self._clock.wall():
            raise NotAuthenticated("the certificate has expired: join again with a new token (astraflow token)")
        if f"{shown.serial:032x}" in self._revoked:
            raise NotAuthenticated("the certificate was revoked: whoever holds it left or was retired")
        if shown.identity != caller.identity or (caller.id and shown.serial != int(caller.id, 16)):
            raise NotAuthenticated(
                f"the certificate is {shown.identity}'s, the credential {caller.identity}'s: both must be of one holder"
            )
