"""Signed manifests: a version is the run's if the key of the run's trainers signed it, wherever it was stored.

The signature covers a statement in which every field has its length, so that no two manifests share a statement:

    "astraflow weights manifest 1" | policy | version u64 | root hash | metadata | probe

Integers are little-endian; text and bytes have their length (u64) first; metadata is the number of entries (u64), then
key and value of each, sorted by the key's bytes; the probe is one byte, 0 for none, else 1, tokens, lengths,
scored_from (each a count, u64, and that many u64) and logprobs. The root hash represents the tensors: it covers names,
types, shapes and hashes, in order, and `tensors.check_manifest` verifies it and the offsets.

Source: Ed25519, RFC 8032.
"""

import base64
import binascii
import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from astraflow.contract.errors import InvalidInput, NotTrusted
from astraflow.contract.weights import Manifest, Probe

KEY_BYTES = 32

_DOMAIN = b"astraflow weights manifest 1"


class VerifyingKey:
    """Public key, which readers pin. Equal to another one with the same bytes."""

    def __init__(self, raw: bytes) -> None:
        """raw: 32 bytes. Raises: InvalidInput."""
        if len(raw) != KEY_BYTES:
            raise InvalidInput(
                f"cannot use a weights key of {len(raw)} bytes: it must have {KEY_BYTES}; take the line in "
                "`weights.pub` of the run directory",
                code="weights.invalid_key",
            )
        self.raw = raw
        self._key = Ed25519PublicKey.from_public_bytes(raw)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the text form. Raises: InvalidInput."""
        try:
            return cls(base64.b64decode(text.strip(), altchars=b"-_", validate=True))
        except (binascii.Error, ValueError):
            raise InvalidInput(
                f"cannot use the weights key {text[:60]!r}: it is not base64; take the line in `weights.pub` of the "
                "run directory",
                code="weights.invalid_key",
            ) from None

    def __str__(self) -> str:
        """Returns one line of base64."""
        return base64.urlsafe_b64encode(self.raw).decode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerifyingKey) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def check(self, manifest: Manifest) -> None:
        """Verifies that the holder of the signing key made this manifest, with all its fields. Raises: NotTrusted."""
        what = f"version {manifest.version} of {manifest.policy!r}"
        if not manifest.signature:
            raise NotTrusted(
                f"cannot trust {what}: it is not signed, and this run signs its versions; find out which source offers "
                "it",
                code="weights.not_signed",
            )
        try:
            self._key.verify(manifest.signature, signed_payload(manifest))
        except InvalidSignature:
            raise NotTrusted(
                f"cannot trust {what}: it was altered, or signed by another key than the pinned {self}; find out which "
                "source offers it",
                code="weights.wrong_signature",
            ) from None


class SigningKey:
    """Private key, held by the run's trainers. It is never logged or displayed."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = VerifyingKey(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> Self:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a file of mode 0600. Raises: InvalidInput when it is unreadable, not a key, or readable by others."""
        try:
            if path.stat().st_mode & 0o077:
                raise InvalidInput(
                    f"cannot use the signing key {str(path)!r}: other users can read it; run chmod 600 {path}",
                    code="weights.signing_key_exposed",
                )
            raw = base64.b64decode(path.read_text().strip(), altchars=b"-_", validate=True)
            return cls(Ed25519PrivateKey.from_private_bytes(raw))
        except OSError as problem:
            raise InvalidInput(
                f"cannot read the signing key {str(path)!r}: {problem.strerror}; take `weights.key` of the run "
                "directory",
                code="weights.invalid_signing_key",
            ) from None
        except ValueError:  # without the text, which may be another kind of secret
            raise InvalidInput(
                f"cannot read the signing key {str(path)!r}: it holds no key; take `weights.key` of the run directory",
                code="weights.invalid_signing_key",
            ) from None

    def text(self) -> str:
        """Returns the text form; store it only in a file of mode 0600."""
        return base64.urlsafe_b64encode(self._key.private_bytes_raw()).decode()

    def sign(self, manifest: Manifest) -> Manifest:
        """Returns the manifest with its signature, which is deterministic."""
        return replace(manifest, signature=self._key.sign(signed_payload(manifest)))


def pinned_key(configured: str, announced: bytes) -> VerifyingKey | None:
    """Returns the key that a reader verifies versions with; None in a run without signatures.

    configured: text given by the operator; announced: sent by dataflow. Either may be empty. Raises: InvalidInput when
    they are two keys.
    """
    own = VerifyingKey.parse(configured) if configured else None
    received = VerifyingKey(announced) if announced else None
    if own is not None and received is not None and own != received:
        raise InvalidInput(
            f"cannot use --weights-key {own}: dataflow announces the key {received}; connect to the right run, or "
            "correct the option",
            code="weights.key_mismatch",
        )
    return own or received


def signed_payload(manifest: Manifest) -> bytes:
    """Returns the signed statement, in the format of the module's docstring."""
    metadata = sorted((key.encode(), value.encode()) for key, value in manifest.metadata.items())
    return b"".join(
        (
            _DOMAIN,
            _length_prefixed(manifest.policy.encode()),
            struct.pack("<Q", manifest.version),
            _length_prefixed(manifest.root_hash),
            struct.pack("<Q", len(metadata)),
            *(_length_prefixed(part) for entry in metadata for part in entry),
            _encode_probe(manifest.probe),
        )
    )


def _encode_probe(probe: Probe | None) -> bytes:
    if probe is None:
        return b"\0"
    numbers = (_count_prefixed(probe.lengths), _count_prefixed(probe.scored_from))
    return b"".join((b"\1", _length_prefixed(probe.tokens), *numbers, _length_prefixed(probe.logprobs)))


def _length_prefixed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _count_prefixed(numbers: Iterable[int]) -> bytes:
    values = tuple(numbers)
    return struct.pack(f"<Q{len(values)}Q", len(values), *values)
