"""The certificate of the page, of the run's authority: kept, because browsers remember the one they were let take."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from astraflow.access.authority import Authority
from astraflow.cli.rundir import explained, write_private

FILE = "page.pem"

LEFT_AT_LEAST = timedelta(days=30)
"""One that ends sooner is made anew."""


def page_certificate(authority: Authority, directory: Path, *, host: str, names: Sequence[str]) -> Path:
    """A file with the certificate, its chain and its key (0600): the one that is there, as long as it does.

    names: under which browsers ask for the page, besides `host` and those of loopback.
    Raises: InvalidInput or StorageFull when it can be neither read nor written.
    """
    file = directory / FILE
    try:
        if not (file.exists() and _does(file.read_bytes(), authority, names)):
            made = authority.for_service(host, names)
            write_private(file, (made.certificate + made.key).decode())
    except OSError as problem:
        raise explained(problem, f"the page's folder {directory}") from None
    return file


def _does(pem: bytes, authority: Authority, names: Sequence[str]) -> bool:
    try:
        own, issuer = x509.load_pem_x509_certificates(pem)
        known = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    called = {*known.get_values_for_type(x509.DNSName), *map(str, known.get_values_for_type(x509.IPAddress))}
    lasts = own.not_valid_after_utc - datetime.now(UTC) > LEFT_AT_LEAST
    return lasts and set(names) <= called and issuer.public_bytes(Encoding.PEM) == authority.pem
