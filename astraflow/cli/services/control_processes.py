"""Starts the processes of the control plane: page, fleet service and maintainer. They use AstraFlow over the network.

Each function replaces this process with another program.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from astraflow.access.authority import Authority
from astraflow.cli.options import TOKEN, words
from astraflow.cli.run_directory import storage_error
from astraflow.cli.run_endpoints import PlaneEndpoints
from astraflow.runtime.folders.private_files import write_private
from astraflow.runtime.http.hosts import is_loopback
from astraflow.runtime.imports import require_package
from astraflow.runtime.service import make_private_folder

CERTIFICATE_FILE = "page.pem"

MIN_REMAINING_VALIDITY = timedelta(days=30)
"""A certificate with less validity is replaced."""


def run_web(directory: Path, options: Mapping[str, object], *, token: str) -> NoReturn:
    """Starts the page. options: of `python -m web`.

    Beyond loopback the page gets a certificate of the run's `authority`, unless another certificate or a proxy is
    given.
    """
    require_package("fastapi", extra="web", to="serve the page")
    _make_private(directory)
    has_own = any(options.get(name) for name in ("tls-certificate", "tls-key", "behind-proxy"))
    host, authority, name = str(options["host"]), options.get("authority"), options.get("name")
    if isinstance(authority, Path) and not has_own and not is_loopback(host):
        names = [str(name)] if name else []
        file = page_certificate(Authority.load(authority), directory, host=host, names=names)
        options = {**options, "tls-certificate": file, "tls-key": file}
    _replace_process("web", *words({**options, "directory": directory}), token=token)


def run_fleet(directory: Path, options: Mapping[str, object], *, tls: bool | None, token: str) -> NoReturn:
    """Starts the fleet service. options: of `python -m maintainer.fleet`. tls: None for TLS beyond loopback only."""
    require_package("sqlmodel", extra="fleet", to="serve the fleet")
    _make_private(directory)
    flag = [] if tls is None else ["--tls" if tls else "--no-tls"]
    _replace_process("maintainer.fleet", *words({**options, "directory": directory}), *flag, token=token)


def run_maintainer(
    command: str,
    planes: PlaneEndpoints | None = None,
    *arguments: str,
    directory: Path | None = None,
    options: Mapping[str, object] | None = None,
) -> NoReturn:
    """Starts the maintainer. command: of `python -m maintainer`, with its arguments and options."""
    require_package("sqlmodel", extra="maintainer", to="run the maintainer")
    if directory is not None:
        _make_private(directory)
    everything = {**(options or {}), "directory": directory}
    if planes is not None:
        everything |= {"dataflow": planes.dataflow, "fleet": planes.fleet, "authority": planes.authority}
    _replace_process("maintainer", command, *arguments, *words(everything), token=planes.token if planes else None)


def _replace_process(module: str, *words: str, token: str | None) -> NoReturn:
    environment = {**os.environ, **({} if token is None else {TOKEN: token})}
    os.execve(sys.executable, [sys.executable, "-m", module, *words], environment)  # noqa: S606 (a list of arguments, no shell)


def _make_private(directory: Path) -> None:
    try:
        make_private_folder(directory)
    except OSError as problem:
        raise storage_error(problem, str(directory)) from None


def page_certificate(authority: Authority, directory: Path, *, host: str, names: Sequence[str]) -> Path:
    """Returns the file with the certificate, its chain and its key (mode 0600); creates it unless it is still valid.

    names: host names of the page, besides `host` and the loopback names.
    Raises: InvalidInput or StorageFull when the file can be neither read nor written.
    """
    file = directory / CERTIFICATE_FILE
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
