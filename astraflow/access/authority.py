"""Certificate authority of one run: created with the run, stored in one folder, trusted only within the run.

    ca.pem         certificate with which services and callers verify each other; public
    ca.key         mode 0600: it can impersonate any caller and service of the run
    revoked.json   see `revocations`

Keys are ECDSA over P-256, which every TLS library supports. Source: X.509 as in RFC 5280; the pin as in kubeadm's
`--discovery-token-ca-cert-hash` (SHA-256 over the public key).
"""

import hashlib
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from astraflow.access.callers import RUN_TOKEN_CALLER, Caller
from astraflow.access.credentials import new_id
from astraflow.contract.errors import InvalidInput, NotAuthenticated
from astraflow.runtime.clock import Clock, SystemClock
from astraflow.runtime.folders.private_files import write_private

CERTIFICATE, KEY = "ca.pem", "ca.key"

PIN_PREFIX = "sha256:"

_CA_LIFE = timedelta(days=3650)
_SERVICE_LIFE = timedelta(days=365)
_SKEW = timedelta(minutes=5)
"""Certificates are valid from this long before their creation, because clocks differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate with its chain, and its private key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateClaims:
    """Claims in a caller's certificate."""

    identity: str
    """Subject alternative name of the certificate."""
    serial: int
    expires_at: float
    """Unix seconds."""


class Authority:
    """Issues the run's certificates."""

    def __init__(self, folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.folder = folder
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, folder: Path, *, run: str, clock: Clock | None = None) -> Self:
        """Creates an authority in a new folder. Raises: OSError."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"astraflow run {run}"[:64])])
        now = _now(clock or SystemClock())
        certificate = (
            _certificate_builder(name, key.public_key(), serial=x509.random_serial_number(), now=now, life=_CA_LIFE)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(folder / KEY, _private_key_pem(key))
        write_private(folder / CERTIFICATE, certificate.public_bytes(Encoding.PEM))
        return cls(folder, certificate, key)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Loads the authority in a folder. Raises: InvalidInput when it is missing or damaged, or other users may read
        its key."""
        try:
            if (folder / KEY).stat().st_mode & 0o077:
                raise InvalidInput(
                    f"cannot load the authority: other users can read its key; run chmod 600 {folder / KEY}",
                    code="authority.key_exposed",
                )
            certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
            key = load_pem_private_key((folder / KEY).read_bytes(), password=None)
        except OSError as problem:
            raise InvalidInput(
                f"cannot load a certificate authority from {str(folder)!r}: {problem.strerror}; "
                "give the run's authority folder",
                code="authority.not_found",
            ) from None
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise InvalidInput(
                f"cannot load a certificate authority from {str(folder)!r}: its files are damaged; "
                "restore them from a copy",
                code="authority.damaged",
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise InvalidInput(
                f"cannot load a certificate authority from {str(folder)!r}: {KEY} does not match {CERTIFICATE}; "
                "restore both from a copy",
                code="authority.damaged",
            )
        return cls(folder, certificate, key)

    @property
    def pem(self) -> bytes:
        """Certificate of the authority, PEM."""
        return self._certificate.public_bytes(Encoding.PEM)

    @property
    def pin(self) -> str:
        """Pin of the authority: `sha256:` and the digest of its public key."""
        return pin_of(self._certificate)

    def for_service(self, host: str, names: Iterable[str] = (), *, clock: Clock | None = None) -> KeyPair:
        """Issues a certificate and key, in memory, for a service that listens on `host` and is known by `names`."""
        key = ec.generate_private_key(ec.SECP256R1())
        all_names = dict.fromkeys((host, *names, "localhost", "127.0.0.1", "::1", socket.gethostname()))
        wildcards = {"0.0.0.0", "::", ""}  # noqa: S104 (not bound: excluded)
        alternatives = [_general_name(name) for name in all_names if name not in wildcards]
        certificate = (
            _certificate_builder(
                _common_name(host),
                key.public_key(),
                serial=x509.random_serial_number(),
                now=_now(clock),
                life=_SERVICE_LIFE,
            )
            .issuer_name(self._certificate.subject)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(self._issuer_key(), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return KeyPair(certificate=certificate.public_bytes(Encoding.PEM) + self.pem, key=_private_key_pem(key))

    def for_caller(self, request: bytes, caller: Caller, *, clock: Clock | None = None) -> bytes:
        """Issues a caller's certificate, PEM, valid as long as its credential, for its signing request (PEM).

        Uses only the public key of the request; the identity comes from the credential. Raises: InvalidInput.
        """
        key = requested_key(request)
        certificate = (
            _certificate_builder(
                _common_name(caller.name or caller.role.value), key, serial=int(caller.id, 16), now=_now(clock)
            )
            .not_valid_after(datetime.fromtimestamp(caller.expires_at, UTC))
            .issuer_name(self._certificate.subject)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(caller.identity)]), critical=False
            )
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(self._issuer_key(), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM)

    def for_run_token(self, *, clock: Clock | None = None) -> KeyPair:
        """Issues a certificate and key, in memory, for a process that has the authority's folder and the run token."""
        key, request = new_request()
        expires_at = (clock or SystemClock()).wall() + _SERVICE_LIFE.total_seconds()
        holder = Caller(id=new_id(), role=RUN_TOKEN_CALLER.role, expires_at=expires_at)
        return KeyPair(certificate=self.for_caller(request, holder, clock=clock), key=key)

    def _issuer_key(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())


def new_request() -> tuple[bytes, bytes]:
    """Creates a private key and a signing request for it, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(_common_name("astraflow")).sign(key, hashes.SHA256())
    return _private_key_pem(key), request.public_bytes(Encoding.PEM)


def requested_key(request: bytes) -> ec.EllipticCurvePublicKey:
    """Returns the public key of a signing request after checking that it is signed with the private key. Raises:
    InvalidInput."""
    try:
        signing_request = x509.load_pem_x509_csr(request)
        key = signing_request.public_key()
        is_proven = signing_request.is_signature_valid
    except (ValueError, InvalidSignature, UnsupportedAlgorithm):
        raise InvalidInput(
            "cannot read the certificate signing request: not a valid request; send one in PEM format",
            code="certificate.invalid_request",
        ) from None
    if not is_proven or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidInput(
            "cannot accept the certificate signing request: it is not signed with its own P-256 key; create a new one",
            code="certificate.invalid_request",
        )
    return key


def key_digest(request: bytes) -> str:
    """Returns the digest of a signing request's public key. Raises: InvalidInput."""
    return _spki_digest(requested_key(request))


def pin_of(certificate: x509.Certificate) -> str:
    """Returns the pin of a certificate's public key."""
    return f"{PIN_PREFIX}{_spki_digest(certificate.public_key())}"


def checked_pin(text: str) -> str:
    """Validates and normalises a pin. Raises: InvalidInput."""
    digest = text.removeprefix(PIN_PREFIX).lower()
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise InvalidInput(
            f"cannot use {text[:80]!r} as a pin: not a valid pin; use `{PIN_PREFIX}` and 64 hexadecimal digits",
            code="tls.invalid_pin",
        )
    return PIN_PREFIX + digest


@lru_cache(maxsize=4096)
def read_certificate(certificate: bytes) -> CertificateClaims:
    """Returns the claims of a caller's certificate (PEM), whose issuer TLS has verified. Raises: NotAuthenticated."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (identity,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, x509.ExtensionNotFound):
        raise NotAuthenticated(
            "cannot authenticate: the certificate names no caller of this run; join with a token of this run",
            code="certificate.invalid",
        ) from None
    expires_at = parsed.not_valid_after_utc.timestamp()
    return CertificateClaims(identity=identity, serial=parsed.serial_number, expires_at=expires_at)


def _certificate_builder(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    *,
    serial: int,
    now: datetime,
    life: timedelta | None = None,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key).serial_number(serial)
    builder = builder.not_valid_before(now - _SKEW)
    return builder if life is None else builder.not_valid_after(now + life)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _spki_digest(key: CertificatePublicKeyTypes) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _private_key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _now(clock: Clock | None) -> datetime:
    return datetime.fromtimestamp((clock or SystemClock()).wall(), UTC)
