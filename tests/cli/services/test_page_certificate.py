"""The page reuses its certificate while it is valid, and issues a new one otherwise."""

import ssl
from pathlib import Path

import pytest

from astraflow.access.authority import Authority
from astraflow.cli.services.control_processes import MIN_REMAINING_VALIDITY, page_certificate
from astraflow.runtime.clock import SystemClock

DAY_S = 86400.0


class Earlier(SystemClock):
    """Clock that is `by_s` seconds behind."""

    def __init__(self, by_s: float) -> None:
        self._by_s = by_s

    def wall(self) -> float:
        return super().wall() - self._by_s


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", run="evening")


def page_pem(authority: Authority, folder: Path, *names: str) -> bytes:
    return page_certificate(authority, folder, host="0.0.0.0", names=names).read_bytes()  # noqa: S104 (not bound)


def test_the_certificate_is_created_once_in_a_private_file(authority: Authority, tmp_path: Path) -> None:
    first = page_pem(authority, tmp_path, "page.example.org")
    assert page_pem(authority, tmp_path, "page.example.org") == first
    assert page_pem(authority, tmp_path) == first
    (file,) = tmp_path.glob("*.pem")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_client_that_trusts_the_authority_accepts_the_certificate(authority: Authority, tmp_path: Path) -> None:
    page_pem(authority, tmp_path, "page.example.org")
    (file,) = tmp_path.glob("*.pem")
    server, browser = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cadata=authority.pem.decode())
    server.load_cert_chain(file, file)
    for name in ("page.example.org", "localhost", "127.0.0.1"):
        shake_hands(server, browser, name)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example\.org"):
        shake_hands(server, browser, "other.example.org")


def test_a_new_certificate_replaces_one_of_other_names_authority_or_damage(
    authority: Authority, tmp_path: Path
) -> None:
    first = page_pem(authority, tmp_path)
    named = page_pem(authority, tmp_path, "page.example.org")
    assert named != first
    other = page_pem(Authority.create(tmp_path / "other", run="evening"), tmp_path, "page.example.org")
    assert other != named
    (file,) = tmp_path.glob("*.pem")
    file.write_bytes(other[: len(other) // 3])
    assert page_pem(authority, tmp_path) not in (first, named, other)


@pytest.mark.parametrize(("days_more", "is_kept"), [(1.0, True), (-1.0, False)])
def test_a_certificate_close_to_expiry_is_replaced(
    authority: Authority, tmp_path: Path, days_more: float, is_kept: bool
) -> None:
    """A service certificate is valid for one year."""
    age_s = 365 * DAY_S - MIN_REMAINING_VALIDITY.total_seconds() - days_more * DAY_S
    old = authority.for_service("0.0.0.0", clock=Earlier(age_s))  # noqa: S104 (not bound)
    (tmp_path / "page.pem").write_bytes(old.certificate + old.key)
    assert (page_pem(authority, tmp_path) == old.certificate + old.key) is is_kept


def shake_hands(server: ssl.SSLContext, browser: ssl.SSLContext, name: str) -> None:
    """Completes a TLS handshake in memory. Raises: ssl.SSLError."""
    to_server, to_browser = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = browser.wrap_bio(to_browser, to_server, server_hostname=name)
    other = server.wrap_bio(to_server, to_browser, server_side=True)
    waiting = [tls, other, tls, other]
    for side in waiting:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
