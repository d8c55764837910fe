"""Origins and hosts that the page accepts or refuses: behind a proxy, with TLS, by name and port."""

import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from starlette.datastructures import Headers
from starlette.types import Scope

from astraflow.contract.errors import InvalidInput
from tests.errors import raises_code
from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import form_token, running_web
from web.process_settings import Settings
from web.security.addresses import came_from, is_own_origin

PUBLIC = "https://astraflow.example.org"


def settings(**more: Any) -> Settings:
    return Settings(dataflow="h:1", token="t", directory=Path(), **more)


@pytest.mark.parametrize(
    ("origin", "host", "is_own"),
    [
        ("http://127.0.0.1:4000", "127.0.0.1:4000", True),
        ("http://localhost", "localhost:80", True),
        ("http://[::1]:4000", "[::1]:4000", True),
        ("http://127.0.0.1:4001", "127.0.0.1:4000", False),
        ("https://127.0.0.1:4000", "127.0.0.1:4000", False),
        ("http://127.0.0.1:4000.evil.example", "127.0.0.1:4000", False),
        ("http://evil@127.0.0.1:4000", "127.0.0.1:4000", False),
        ("null", "127.0.0.1:4000", False),
        ("", "127.0.0.1:4000", False),
    ],
)
def test_an_own_origin_has_the_scheme_name_and_port_of_the_page(origin: str, host: str, is_own: bool) -> None:
    assert is_own_origin(origin, host=host, settings=settings()) is is_own


@pytest.mark.parametrize("host", ["astraflow.example.org", "astraflow.example.org:443", "127.0.0.1:4000"])
def test_behind_a_proxy_only_the_public_origin_is_own(host: str) -> None:
    behind = settings(behind_proxy=f"{PUBLIC}/")

    assert is_own_origin(PUBLIC, host=host, settings=behind)
    assert is_own_origin(f"{PUBLIC}:443", host=host, settings=behind)
    for other in ("http://astraflow.example.org", f"{PUBLIC}:444", f"http://{host}", f"{PUBLIC}.evil.example"):
        assert not is_own_origin(other, host=host, settings=behind)


def test_only_the_last_forwarded_address_is_trusted_and_only_behind_a_proxy() -> None:
    scope: Scope = {"client": ("10.0.0.1", 5)}
    headers = Headers({"x-forwarded-for": "6.6.6.6, 192.0.2.7"})

    assert came_from(scope, headers, is_proxied=True) == "192.0.2.7"
    assert came_from(scope, headers, is_proxied=False) == "10.0.0.1"
    assert came_from(scope, Headers({"x-forwarded-for": "<b>"}), is_proxied=True) == "10.0.0.1"
    assert came_from(scope, Headers({}), is_proxied=True) == "10.0.0.1"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])  # noqa: S104 (it must refuse)
def test_addresses_beyond_loopback_need_tls(host: str) -> None:
    with raises_code(InvalidInput, "web.tls_required"):
        settings(host=host).check()
    settings(host=host, behind_proxy=PUBLIC).check()
    settings(host=host, tls_certificate=Path("c"), tls_key=Path("k")).check()


def test_incomplete_or_doubled_tls_settings_are_refused() -> None:
    with raises_code(InvalidInput, "web.invalid_tls", "both"):
        settings(tls_key=Path("k")).check()
    with raises_code(InvalidInput, "web.invalid_tls", "--behind-proxy"):
        settings(tls_certificate=Path("c"), tls_key=Path("k"), behind_proxy=PUBLIC).check()


def test_host_names_are_the_configured_ones_without_wildcards() -> None:
    assert settings(host="0.0.0.0", names=("Node.Example",)).hosts == {"127.0.0.1", "localhost", "::1", "node.example"}  # noqa: S104 (not bound)
    assert "192.0.2.1" in settings(host="192.0.2.1").hosts
    assert "astraflow.example.org" in settings(behind_proxy=PUBLIC).hosts


@pytest.mark.anyio
async def test_the_page_works_behind_a_proxy_and_refuses_origins_of_its_own_port(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fake = FakeControlPlane(sequence=30)
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow, port=port, behind_proxy=PUBLIC) as web:
        assert web.login_url.startswith(f"{PUBLIC}/login?token=")
        handed_on = {"host": "astraflow.example.org", "x-forwarded-for": "6.6.6.6, 192.0.2.7"}
        path = web.login_url.removeprefix(PUBLIC)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=handed_on) as client:
            entered = await client.get(path)
            cookie = entered.headers["set-cookie"]
            assert "Secure" in cookie
            assert entered.headers["strict-transport-security"]
            client.headers["cookie"] = cookie.partition(";")[0]
            client.headers["x-form-token"] = form_token(await client.get("/settings"))
            drain = "/nodes/n0/drain"
            assert (await client.post(drain, headers={"origin": f"http://127.0.0.1:{port}"})).status_code == 403
            assert (await client.post(drain, headers={"origin": PUBLIC})).status_code == 303
            assert '"came_from": "192.0.2.7"' in (await client.get("/audit.ndjson")).text
            assert (await client.get("/", headers={"host": "evil.example"})).status_code == 421
    assert fake.actions == [("drain", "n0", "admin")]


@pytest.mark.long
@pytest.mark.anyio
async def test_the_page_speaks_tls_itself(tmp_path: Path) -> None:
    certificate, key = certificate_files(tmp_path)
    fake = FakeControlPlane(sequence=30)
    more: dict[str, Any] = {"tls_certificate": certificate, "tls_key": key, "names": ("localhost",)}
    async with fake.serving() as dataflow, running_web(tmp_path, dataflow, **more) as web:
        assert web.login_url.startswith("https://localhost:")
        trusted = ssl.create_default_context(cafile=certificate)
        async with httpx.AsyncClient(base_url=web.address, verify=trusted) as client:
            entered = await client.get(web.login_url)
            assert entered.status_code == 303
            assert "Secure" in entered.headers["set-cookie"]
            headers = {"origin": web.address, "x-form-token": form_token(await client.get("/settings"))}
            assert (await client.post("/nodes/n0/drain", headers=headers)).status_code == 303


def certificate_files(folder: Path) -> tuple[Path, Path]:
    """Creates a self-signed certificate for localhost and its key; returns their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "web.pem", folder / "web.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths
