"""TLS files of a process: CA certificates to verify peers with, and a certificate with its key."""

import ssl
from pathlib import Path

from astraflow.contract.errors import InvalidInput


def read_ca_certificates(path: Path) -> bytes:
    """Returns the certificates in a PEM file, for verification of the peer. Raises: InvalidInput naming the file."""
    content = _read(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        raise InvalidInput(
            f"cannot read CA certificates from {str(path)!r}: the file holds no certificates in PEM format; "
            "give a PEM file of the CA",
            code="tls.invalid_file",
        ) from None
    return content


def read_key_pair(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """Returns a private key and its certificate chain. Raises: InvalidInput naming the files."""
    contents = (_read(key), _read(certificate))
    try:
        # With an empty password, OpenSSL rejects an encrypted key instead of prompting on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError:
        raise InvalidInput(
            f"cannot use certificate {str(certificate)!r} with key {str(key)!r}: they do not match or are unreadable; "
            "give a certificate and its key in PEM format without a password",
            code="tls.invalid_file",
        ) from None
    return contents


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise InvalidInput(
            f"cannot read TLS file {str(path)!r}: {problem.strerror}; check path and permissions",
            code="tls.invalid_file",
        ) from problem
