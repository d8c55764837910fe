"""TLS certificate of the page, issued by the run's authority; reused, because browsers store an accepted exception."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from astraflow.access.authority import Authority
from astraflow.cli.run_directory import storage_error, write_private

FILE = "page.pem"

MIN_REMAINING_VALIDITY = timedelta(days=30)
"""A certificate with less validity is replaced."""


def page_certificate(authority: Authority, directory: Path, *, host: str, names: Sequence[str]) -> Path:
    """Returns the file with the certificate, its chain and its key (mode 0600); creates it unless it is still valid.

    names: host names of the page, besides `host` and the loopback names.
    Raises: InvalidInput or StorageFull when the file can be neither read nor written.
    """
    file = directory / FILE
    try:
        if not (file.exists() and _is_valid_for(file.read_bytes(), authority, names)):
            issued = authority.for_service(host, names)
            write_private(file, (issued.certificate + issued.key).decode())
    except OSError as problem:
        raise storage_error(problem, f"the page's folder {directory}") from None
    return file


def _is_valid_for(pem: bytes, authority: Authority, names: Sequence[str]) -> bool:
    try:
        certificate, issuer = x509.load_pem_x509_certificates(pem)
        alternative_names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    certified_names = {
        *alternative_names.get_values_for_type(x509.DNSName),
        *map(str, alternative_names.get_values_for_type(x509.IPAddress)),
    }
    has_validity = certificate.not_valid_after_utc - datetime.now(UTC) > MIN_REMAINING_VALIDITY
    return has_validity and set(names) <= certified_names and issuer.public_bytes(Encoding.PEM) == authority.pem
