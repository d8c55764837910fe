"""The run's own certificate authority: made with the run, kept in one folder, trusted by nobody else.

    ca.pem         what services and callers check each other against; public
    ca.key         mode 0600: whoever has it can be anyone in this run
    revoked.json   see `revocations`

Keys are ECDSA over P-256, which every TLS library takes. Source: X.509 as in RFC 5280; the pin as in kubeadm's
`--discovery-token-ca-cert-hash` (SHA-256 over the public key).
"""

import hashlib
import ipaddress
import os
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

from astraflow.access.callers import RUN_TOKEN, Caller
from astraflow.access.credentials import new_id
from astraflow.contract.errors import InvalidInput, NotAuthenticated
from astraflow.runtime.clock import Clock, SystemClock

CERTIFICATE, KEY = "ca.pem", "ca.key"

PIN = "sha256:"

_CA_LIFE = timedelta(days=3650)
_SERVICE_LIFE = timedelta(days=365)
_SKEW = timedelta(minutes=5)
"""Certificates are good from a little before they are made: clocks differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate with the chain that leads to it, and its private key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a caller's certificate says."""

    identity: str
    """Its subject alternative name."""
    serial: int
    expires_at: float
    """Unix seconds."""


class Authority:
    """Issues and knows the run's certificates."""

    def __init__(self, folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.folder = folder
        self._certificate = certificate
        self._key = key

    @classmethod
    def made(cls, folder: Path, *, run: str, clock: Clock | None = None) -> Self:
        """A new one in a new folder. Raises: OSError."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"astraflow run {run}"[:64])])
        now = _now(clock or SystemClock())
        certificate = (
            _builder(name, key.public_key(), serial=x509.random_serial_number(), now=now, life=_CA_LIFE)
            .issuer_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(folder / KEY, _private(key))
        _write(folder / CERTIFICATE, certificate.public_bytes(Encoding.PEM))
        return cls(folder, certificate, key)

    @classmethod
    def opened(cls, folder: Path) -> Self:
        """The one in a folder. Raises: InvalidInput when it is not there, damaged, or others may read its key."""
        try:
            if (folder / KEY).stat().st_mode & 0o077:
                raise InvalidInput(
                    f"the authority's key {folder / KEY} can be read by others: chmod 600 {folder / KEY}"
                )
            certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
            key = load_pem_private_key((folder / KEY).read_bytes(), password=None)
        except OSError as problem:
            raise InvalidInput(f"{folder} holds no certificate authority: {problem.strerror}") from None
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise InvalidInput(f"{folder} holds no certificate authority that can be read") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise InvalidInput(f"{folder / KEY} does not belong to {folder / CERTIFICATE}")
        return cls(folder, certificate, key)

    @property
    def pem(self) -> bytes:
        """Its certificate."""
        return self._certificate.public_bytes(Encoding.PEM)

    @property
    def pin(self) -> str:
        """What callers pin: `sha256:` and the digest of its public key."""
        return pin_of(self._certificate)

    def for_service(self, host: str, names: Iterable[str] = (), *, clock: Clock | None = None) -> KeyPair:
        """A certificate and its key for a service that listens on `host` and is known by `names`, made in memory."""
        key = ec.generate_private_key(ec.SECP256R1())
        known = dict.fromkeys((host, *names, "localhost", "127.0.0.1", "::1", socket.gethostname()))
        wildcards = {"0.0.0.0", "::", ""}  # noqa: S104 (not bound: left out)
        alternatives = [_general_name(name) for name in known if name not in wildcards]
        certificate = (
            _builder(
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
        return KeyPair(certificate=certificate.public_bytes(Encoding.PEM) + self.pem, key=_private(key))

    def for_caller(self, request: bytes, caller: Caller, *, clock: Clock | None = None) -> bytes:
        """A caller's certificate, PEM, until its credential expires, on a signing request (PEM) of its own.

        Only the public key is taken from the request: who it is for, its credential says. Raises: InvalidInput.
        """
        key = requested_key(request)
        certificate = (
            _builder(_common_name(caller.name or caller.role.value), key, serial=int(caller.id, 16), now=_now(clock))
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
        """For a process beside the authority that holds the run token, made in memory."""
        key, request = new_request()
        until = (clock or SystemClock()).wall() + _SERVICE_LIFE.total_seconds()
        holder = Caller(id=new_id(), role=RUN_TOKEN.role, expires_at=until)
        return KeyPair(certificate=self.for_caller(request, holder, clock=clock), key=key)

    def _issuer_key(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())


def new_request() -> tuple[bytes, bytes]:
    """A new private key and a signing request for it, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(_common_name("astraflow")).sign(key, hashes.SHA256())
    return _private(key), request.public_bytes(Encoding.PEM)


def requested_key(request: bytes) -> ec.EllipticCurvePublicKey:
    """The public key of a signing request whose sender has proven to hold the private one. Raises: InvalidInput."""
    try:
        found = x509.load_pem_x509_csr(request)
        key = found.public_key()
        is_proven = found.is_signature_valid
    except (ValueError, InvalidSignature, UnsupportedAlgorithm):
        raise InvalidInput("the certificate signing request cannot be read: send one in PEM format") from None
    if not is_proven or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidInput("the certificate signing request is not signed by a P-256 key of its own")
    return key


def key_digest(request: bytes) -> str:
    """Which key a signing request is for. Raises: InvalidInput."""
    return _spki_digest(requested_key(request))


def pin_of(certificate: x509.Certificate) -> str:
    """A certificate's public key as a pin."""
    return f"{PIN}{_spki_digest(certificate.public_key())}"


def checked_pin(text: str) -> str:
    """A pin as given by hand. Raises: InvalidInput."""
    digest = text.removeprefix(PIN).lower()
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise InvalidInput(f"{text[:80]!r} is no pin of an authority: it is `{PIN}` and 64 hexadecimal digits")
    return PIN + digest


@lru_cache(maxsize=4096)
def shown_by(certificate: bytes) -> Shown:
    """What a caller's certificate (PEM) says; that the authority made it, TLS has proven. Raises: NotAuthenticated."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (identity,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (ValueError, x509.ExtensionNotFound):
        raise NotAuthenticated(
            "the certificate names nobody of this run: join it with a token that it minted"
        ) from None
    until = found.not_valid_after_utc.timestamp()
    return Shown(identity=identity, serial=found.serial_number, expires_at=until)


def _builder(
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


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
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


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _now(clock: Clock | None) -> datetime:
    return datetime.fromtimestamp((clock or SystemClock()).wall(), UTC)


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
