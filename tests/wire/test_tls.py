"""TLS and mutual TLS, with certificates made here."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from astraflow.contract.errors import InvalidInput, NotAuthenticated, Unavailable
from astraflow.wire.channel import ClientTls, dial
from astraflow.wire.server import Listen, ServerTls, serving
from tests.wire.plane import TOKEN, Plane, stream, unary


class Certificates:
    """A certificate authority with certificates for a server and a client, made by openssl."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._openssl("req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2")
        (folder / "server.ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        (folder / "client.ext").write_text("extendedKeyUsage=clientAuth\n")
        for name in ("server", "client"):
            self._issue(name)

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def server(self, *, client_ca: Path | None = None) -> ServerTls:
        return ServerTls.read(self.folder / "server.pem", self.folder / "server.key", client_ca)

    def client(self) -> ClientTls:
        return ClientTls.read(self.ca, self.folder / "client.pem", self.folder / "client.key")

    def _issue(self, name: str) -> None:
        self._openssl("req", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ["-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
        self._openssl("x509", "-req", *signed, "-extfile", f"{name}.ext", "-out", f"{name}.pem")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls") / "theirs")


@pytest.mark.anyio
async def test_tls_carries_calls_and_streams(certificates: Certificates) -> None:
    listen = Listen(token=TOKEN, tls=certificates.server())
    async with (
        serving(listen, Plane(pieces=2).register) as address,
        dial(address, token=TOKEN, tls=ClientTls.read(certificates.ca)) as link,
    ):
        assert await unary(link) == "run"
        assert await stream(link) == 2


@pytest.mark.anyio
async def test_over_tls_the_token_is_still_wanted(certificates: Certificates) -> None:
    listen = Listen(token=TOKEN, tls=certificates.server())
    async with (
        serving(listen, Plane().register) as address,
        dial(address, token="wrong", tls=ClientTls.read(certificates.ca)) as link,
    ):
        with pytest.raises(NotAuthenticated):
            await unary(link)


@pytest.mark.anyio
async def test_a_server_of_another_authority_is_not_talked_to(
    certificates: Certificates, strangers: Certificates
) -> None:
    listen = Listen(token=TOKEN, tls=strangers.server())
    async with (
        serving(listen, Plane().register) as address,
        dial(address, token=TOKEN, tls=ClientTls.read(certificates.ca)) as link,
    ):
        with pytest.raises(NotAuthenticated, match=r"not good for this caller \(unable to get local issuer"):
            await unary(link, timeout_s=5.0)


@pytest.mark.anyio
async def test_a_client_without_tls_gets_nothing_from_a_server_with_it(certificates: Certificates) -> None:
    listen = Listen(token=TOKEN, tls=certificates.server())
    async with serving(listen, Plane().register) as address, dial(address, token=TOKEN) as link:
        with pytest.raises(NotAuthenticated, match="speaks TLS, and was dialled without"):
            await unary(link, timeout_s=5.0)


@pytest.mark.anyio
async def test_a_client_with_tls_gets_nothing_from_a_server_without_it(certificates: Certificates) -> None:
    async with (
        serving(Listen(token=TOKEN), Plane().register) as address,
        dial(address, token=TOKEN, tls=ClientTls.read(certificates.ca)) as link,
    ):
        with pytest.raises(NotAuthenticated, match="does not speak TLS, and was dialled with"):
            await unary(link, timeout_s=5.0)


@pytest.mark.anyio
async def test_where_nobody_listens_it_is_not_said_to_be_about_tls(certificates: Certificates) -> None:
    tls = ClientTls.read(certificates.ca)
    for chosen in (tls, certificates.client(), None):
        async with dial("127.0.0.1:1", token=TOKEN, tls=chosen) as link:
            with pytest.raises(Unavailable, match="cannot reach"):
                await unary(link, timeout_s=5.0)


@pytest.mark.anyio
async def test_mutual_tls_lets_in_who_shows_a_certificate(certificates: Certificates) -> None:
    listen = Listen(token=TOKEN, tls=certificates.server(client_ca=certificates.ca))
    async with (
        serving(listen, Plane().register) as address,
        dial(address, token=TOKEN, tls=certificates.client()) as link,
    ):
        assert await unary(link) == "run"


@pytest.mark.anyio
@pytest.mark.parametrize("who", ["nobody", "stranger"])
async def test_mutual_tls_refuses_everyone_else(certificates: Certificates, strangers: Certificates, who: str) -> None:
    listen = Listen(token=TOKEN, tls=certificates.server(client_ca=certificates.ca))
    stranger = strangers.client()
    shown = {
        "nobody": ClientTls.read(certificates.ca),
        "stranger": replace(certificates.client(), certificate=stranger.certificate, key=stranger.key),
    }
    async with serving(listen, Plane().register) as address, dial(address, token=TOKEN, tls=shown[who]) as link:
        match = "wants a certificate" if who == "nobody" else "does not take the certificate of this caller"
        with pytest.raises(NotAuthenticated, match=match):
            await unary(link, timeout_s=5.0)


def test_bad_tls_files_are_named_before_anything_is_tried(
    tmp_path: Path, certificates: Certificates, strangers: Certificates
) -> None:
    missing, garbage = tmp_path / "missing.pem", tmp_path / "garbage.pem"
    garbage.write_bytes(b"\xffgarbage")
    ours, theirs = certificates.folder, strangers.folder
    certificate, key = ours / "server.pem", ours / "server.key"
    bad = {
        r"missing\.pem cannot be read: No such file": (missing, key, None),
        r"garbage\.pem and .*server\.key are not a certificate": (garbage, key, None),
        r"server\.key are not a certificate and its own key": (certificate, theirs / "server.key", None),
        r"garbage\.pem holds no certificates": (certificate, key, garbage),
    }
    for message, files in bad.items():
        with pytest.raises(InvalidInput, match=message):
            ServerTls.read(*files)


def test_bad_tls_files_of_a_client_are_named(tmp_path: Path, certificates: Certificates) -> None:
    garbage, ca, own = tmp_path / "garbage.pem", certificates.ca, certificates.folder / "client.pem"
    garbage.write_text("garbage")
    bad: dict[str, tuple[Path, Path | None, Path | None]] = {
        r"missing\.pem cannot be read": (tmp_path / "missing.pem", None, None),
        r"garbage\.pem holds no certificates": (garbage, None, None),
        "come together": (ca, own, None),
        r"garbage\.pem are not a certificate": (ca, own, garbage),
    }
    for message, files in bad.items():
        with pytest.raises(InvalidInput, match=message):
            ClientTls.read(*files)
