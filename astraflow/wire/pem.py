"""TLS files: read and proven before gRPC gets them, which tells of a bad one only that nobody can be reached."""

import ssl
from pathlib import Path

from astraflow.contract.errors import InvalidInput


def authorities(path: Path) -> bytes:
    """The certificates in a PEM file, to check the other side against. Raises: InvalidInput naming the file."""
    content = _read(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        raise InvalidInput(f"TLS file {path} holds no certificates in PEM format") from None
    return content


def pair(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """A private key and the certificate chain that belongs to it. Raises: InvalidInput naming the files."""
    contents = (_read(key), _read(certificate))
    try:
        # An empty password: a key that wants one is refused instead of asking on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError:
        raise InvalidInput(
            f"TLS files {certificate} and {key} are not a certificate and its own key, in PEM format without a password"
        ) from None
    return contents


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise InvalidInput(f"TLS file {path} cannot be read: {problem.strerror}") from problem
