"""Signed manifests: a version is the run's when the key of the run's trainers says so, whoever stored or carried it.

What is signed is a statement, in which every field carries its length, so that no two manifests have the same one:

    "astraflow weights manifest 1" | policy | version u64 | root hash | metadata | probe

with integers little-endian; text and bytes as their length (u64) and themselves; metadata as the number of entries
(u64), then key and value of each, sorted by the key's bytes; the probe as one byte, 0 for none, else 1, tokens,
lengths, scored_from (each a count, u64, and that many u64) and logprobs. The root hash stands for the tensors: it
covers names, types, shapes and hashes, in order, and `tensors.check_manifest` proves it and the offsets.

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
    """The public half: what readers pin. Equal to another one with the same bytes."""

    def __init__(self, raw: bytes) -> None:
        """raw: 32 bytes. Raises: InvalidInput."""
        if len(raw) != KEY_BYTES:
            raise InvalidInput(f"a weights key has {KEY_BYTES} bytes, this one {len(raw)}")
        self.raw = raw
        self._key = Ed25519PublicKey.from_public_bytes(raw)

    @classmethod
    def parse(cls, text: str) -> Self:
        """From its text form. Raises: InvalidInput."""
        try:
            return cls(base64.b64decode(text.strip(), altchars=b"-_", validate=True))
        except (binascii.Error, ValueError):
            raise InvalidInput(
                f"{text[:60]!r} is no weights key: take the line in `weights.pub` of the run directory"
            ) from None

    def __str__(self) -> str:
        """One line of base64."""
        return base64.urlsafe_b64encode(self.raw).decode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerifyingKey) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def check(self, manifest: Manifest) -> None:
        """Prove that the holder of the signing key made this manifest, every field of it. Raises: NotTrusted."""
        what = f"{manifest.policy} version {manifest.version}"
        if not manifest.signature:
            raise NotTrusted(f"{what} is not signed, and this run signs its versions: who offers it is not of this run")
        try:
            self._key.verify(manifest.signature, statement(manifest))
        except InvalidSignature:
            raise NotTrusted(
                f"{what} was altered, or signed by another key than the pinned {self}: who offers it is not of this run"
            ) from None


class SigningKey:
    """The private half: what the run's trainers hold. It is never shown."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = VerifyingKey(key.public_key().public_bytes_raw())

    @classmethod
    def made(cls) -> Self:
        """A new one."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: Path) -> Self:
        """From a file of mode 0600. Raises: InvalidInput when it cannot be read, is no key, or others may read it."""
        try:
            if path.stat().st_mode & 0o077:
                raise InvalidInput(f"the signing key {path} can be read by others: chmod 600 {path}")
            raw = base64.b64decode(path.read_text().strip(), altchars=b"-_", validate=True)
            return cls(Ed25519PrivateKey.from_private_bytes(raw))
        except OSError as problem:
            raise InvalidInput(f"the signing key {path} cannot be read: {problem.strerror}") from None
        except ValueError:  # without the text: it may be a secret of another kind
            raise InvalidInput(f"{path} holds no signing key: take `weights.key` of the run directory") from None

    def text(self) -> str:
        """For a file of mode 0600 and for nothing else."""
        return base64.urlsafe_b64encode(self._key.private_bytes_raw()).decode()

    def signed(self, manifest: Manifest) -> Manifest:
        """The manifest with its signature; the same every time."""
        return replace(manifest, signature=self._key.sign(statement(manifest)))


def pinned_key(given: str, told: bytes) -> VerifyingKey | None:
    """The key that a reader holds versions against; None in a run that does not sign.

    given: by hand, as text; told: by dataflow. Either may be empty. Raises: InvalidInput when they are two keys.
    """
    by_hand = VerifyingKey.parse(given) if given else None
    by_dataflow = VerifyingKey(told) if told else None
    if by_hand is not None and by_dataflow is not None and by_hand != by_dataflow:
        raise InvalidInput(
            f"--weights-key is {by_hand}, and dataflow says {by_dataflow}: this is another run, or the option is wrong"
        )
    return by_hand or by_dataflow


def statement(manifest: Manifest) -> bytes:
    """What is signed: see above."""
    metadata = sorted((key.encode(), value.encode()) for key, value in manifest.metadata.items())
    return b"".join(
        (
            _DOMAIN,
            _sized(manifest.policy.encode()),
            struct.pack("<Q", manifest.version),
            _sized(manifest.root_hash),
            struct.pack("<Q", len(metadata)),
            *(_sized(part) for entry in metadata for part in entry),
            _probe(manifest.probe),
        )
    )


def _probe(probe: Probe | None) -> bytes:
    if probe is None:
        return b"\0"
    numbers = (_counted(probe.lengths), _counted(probe.scored_from))
    return b"".join((b"\1", _sized(probe.tokens), *numbers, _sized(probe.logprobs)))


def _sized(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _counted(numbers: Iterable[int]) -> bytes:
    known = tuple(numbers)
    return struct.pack(f"<Q{len(known)}Q", len(known), *known)
