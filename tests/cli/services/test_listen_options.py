"""Listen addresses of services, and when they use TLS."""

from pathlib import Path

import pytest

from astraflow.access.authority import Authority
from astraflow.cli.run_endpoints import client_tls
from astraflow.cli.services.roles import listen_options
from astraflow.contract.errors import InvalidInput
from astraflow.wire.server import check_listen_options
from tests.errors import raises_code

HOST = "192.0.2.7"
"""Documentation address (RFC 5737); no service listens on it."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Authority.create(tmp_path_factory.mktemp("run") / "authority", run="test").folder


@pytest.mark.parametrize(
    ("host", "tls", "expected"),
    [
        ("127.0.0.1", None, False),
        ("localhost", None, False),
        ("::1", None, False),
        (HOST, None, True),
        ("127.0.0.1", True, True),
        (HOST, True, True),
    ],
)
def test_mutual_tls_is_on_by_default_beyond_loopback_only(
    authority: Path, host: str, tls: bool | None, expected: bool
) -> None:
    listen = listen_options(host, 0, "t", authority=authority, tls=tls)
    assert (listen.tls is not None) is listen.requires_certificates is expected
    check_listen_options(listen)


@pytest.mark.parametrize(("tls", "has_authority"), [(False, True), (None, False)])
def test_a_service_beyond_loopback_does_not_start_without_tls(
    authority: Path, tls: bool | None, has_authority: bool
) -> None:
    listen = listen_options(HOST, 0, "t", authority=authority if has_authority else None, tls=tls)
    with raises_code(InvalidInput, "listen.tls_required", "'192.0.2.7'"):
        check_listen_options(listen)


def test_tls_options_that_cannot_work_are_refused(tmp_path: Path, authority: Path) -> None:
    with raises_code(InvalidInput, "tls.no_certificate"):
        listen_options("127.0.0.1", 0, "t", tls=True)
    with raises_code(InvalidInput, "tls.incomplete_options"):
        listen_options("127.0.0.1", 0, "t", certificate=tmp_path / "c.pem")
    with raises_code(InvalidInput, "authority.not_found"):
        listen_options("127.0.0.1", 0, "t", authority=tmp_path)


def test_a_service_with_the_authority_issues_its_own_certificate(authority: Path) -> None:
    first, second = (client_tls(None, None, None, authority) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.ca == second.ca == Authority.load(authority).pem
    assert first.certificate != second.certificate
    assert b"PRIVATE" not in repr(first).encode()
    assert client_tls(None, None, None) is None
