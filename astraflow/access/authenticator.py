"""Authenticates callers: verifies token and certificate and returns the caller."""

import hmac

from astraflow.access.authority import Authority, read_certificate
from astraflow.access.callers import RUN_TOKEN_CALLER, Caller, Role
from astraflow.access.credentials import CredentialSigner, is_credential
from astraflow.access.revocations import Revocations
from astraflow.contract.errors import NotAuthenticated
from astraflow.runtime.clock import Clock, SystemClock


class Authenticator:
    """Verifies the run token, and credentials: their signature, expiry and revocation."""

    def __init__(
        self,
        run_token: str,
        *,
        authority: Authority | None = None,
        requires_certificate: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """authority: the run's certificate authority, if any. requires_certificate: callers must present its
        certificate that matches their credential; TLS has already verified the issuer."""
        self._run_token = run_token.encode()
        self._signer = CredentialSigner(run_token)
        self._revoked = Revocations(authority.folder if authority else None)
        self._requires_certificate = requires_certificate
        self._clock = clock or SystemClock()

    @property
    def clock(self) -> Clock:
        """Clock that determines the expiry of credentials."""
        return self._clock

    @property
    def requires_certificate(self) -> bool:
        """Returns whether callers must present a certificate."""
        return self._requires_certificate

    @property
    def signer(self) -> CredentialSigner:
        """Signer of this run's credentials."""
        return self._signer

    @property
    def revoked(self) -> Revocations:
        """Revoked credentials; `Revocations.add` revokes more."""
        return self._revoked

    def check_token(self, token: str) -> None:
        """Checks a token before the rest of its call is read. Raises: NotAuthenticated for an invalid token; the
        certificate is checked later, by `caller`."""
        self._caller_of_token(token)

    def caller(self, token: str, certificate: bytes | None) -> Caller:
        """Returns the caller with this token and this certificate (PEM). Raises: NotAuthenticated."""
        caller = self._caller_of_token(token)
        if self._requires_certificate:
            self._check_certificate(caller, certificate)
        return caller

    def _caller_of_token(self, token: str) -> Caller:
        if hmac.compare_digest(token.encode(), self._run_token):
            return RUN_TOKEN_CALLER
        if not is_credential(token):
            raise NotAuthenticated(
                "cannot authenticate: the run token is missing or wrong; use the token that the run printed at startup",
                code="token.invalid",
            )
        caller = self._signer.read(token)
        if caller.role is Role.JOINER:
            return caller  # valid for enrolling only, where the ledger of join tokens checks and records it
        if caller.expires_at <= self._clock.wall():
            raise NotAuthenticated(
                "cannot authenticate: the credential has expired; join with a new token (astraflow token)",
                code="credential.expired",
            )
        if caller.id in self._revoked:
            raise NotAuthenticated(
                "cannot authenticate: the credential was revoked because its holder left or was retired; "
                "join with a new token (astraflow token)",
                code="credential.revoked",
            )
        return caller

    def _check_certificate(self, caller: Caller, certificate: bytes | None) -> None:
        if certificate is None:
            raise NotAuthenticated(
                "cannot authenticate: the caller presented no certificate; join with a token to get one",
                code="certificate.missing",
            )
        claims = read_certificate(certificate)
        if claims.expires_at <= self._clock.wall():
            raise NotAuthenticated(
                "cannot authenticate: the certificate has expired; join again with a new token (astraflow token)",
                code="certificate.expired",
            )
        if f"{claims.serial:032x}" in self._revoked:
            raise NotAuthenticated(
                "cannot authenticate: the certificate was revoked because its holder left or was retired; "
                "join with a new token (astraflow token)",
                code="certificate.revoked",
            )
        if claims.identity != caller.identity or (caller.id and claims.serial != int(caller.id, 16)):
            raise NotAuthenticated(
                f"cannot authenticate: the certificate is for {claims.identity!r}, the credential for "
                f"{caller.identity!r}; use the certificate and the credential of the same holder",
                code="certificate.mismatch",
            )
