"""Where services listen, and when they speak TLS."""

from pathlib import Path

import pytest

from astraflow.access.authority import Authority
from astraflow.cli.roles import client_tls, listening
from astraflow.contract.errors import InvalidInput
from astraflow.wire.server import check_safe

HOST = "192.0.2.7"
"""Of nobody; it is not listened on."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Authority.made(tmp_path_factory.mktemp("run") / "authority", run="test").folder


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
    listen = listening(host, 0, "t", authority=authority, tls=tls)
    assert (listen.tls is not None) is listen.wants_certificates is expected
    check_safe(listen)


@pytest.mark.parametrize(("tls", "has_authority"), [(False, True), (None, False)])
def test_beyond_loopback_it_does_not_start_without(authority: Path, tls: bool | None, has_authority: bool) -> None:
    listen = listening(HOST, 0, "t", authority=authority if has_authority else None, tls=tls)
    with pytest.raises(InvalidInput, match=r"refusing to listen on 192\.0\.2\.7 without TLS: .* give --authority"):
        check_safe(listen)


def test_tls_that_nobody_can_make_is_said_so(tmp_path: Path, authority: Path) -> None:
    with pytest.raises(InvalidInput, match="--tls needs the run's --authority"):
        listening("127.0.0.1", 0, "t", tls=True)
    with pytest.raises(InvalidInput, match="together"):
        listening("127.0.0.1", 0, "t", certificate=tmp_path / "c.pem")
    with pytest.raises(InvalidInput, match="holds no certificate authority"):
        listening("127.0.0.1", 0, "t", authority=tmp_path)


def test_who_holds_the_authority_makes_a_certificate_of_its_own(authority: Path) -> None:
    one, other = (client_tls(None, None, None, authority) for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.ca == other.ca == Authority.opened(authority).pem
    assert one.certificate != other.certificate
    assert b"PRIVATE" not in repr(one).encode()
    assert client_tls(None, None, None) is None
