"""TLS and mutual TLS, with certificates made here."""

import subprocess
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
        return ServerTls(certificate=self.folder / "server.pem", key=self.folder / "server.key", client_ca=client_ca)

    def client(self) -> ClientTls:
        return ClientTls(ca=self.ca, certificate=self.folder / "client.pem", key=self.folder / "client.key")

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
        dial(address, token=TOKEN, tls=ClientTls(ca=certificates.ca)) as link,
    ):
        assert await unary(link) == "run"
        assert await stream(link) == 2


@pytest.mark.anyio
async def test_over_tls_the_token_is_still_wanted(certificates: Certificates) -> None:
    listen = Listen(token=TOKEN, tls=certificates.server())
    async with (
        serving(listen, Plane().register) as address,
        dial(address, token="wrong", tls=ClientTls(ca=certificates.ca)) as link,
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
        dial(address, token=TOKEN, tls=ClientTls(ca=certificates.ca)) as link,
    ):
        with pytest.raises(Unavailable, match="cannot be reached"):
            await unary(link, timeout_s=5.0)


@pytest.mark.anyio
async def test_a_client_without_tls_gets_nothing_from_a_server_with_it(certificates: Certificates) -> None:
    listen = Listen(token=TOKEN, tls=certificates.server())
    async with serving(listen, Plane().register) as address, dial(address, token=TOKEN) as link:
        with pytest.raises(Unavailable):
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
        "nobody": ClientTls(ca=certificates.ca),
        "stranger": ClientTls(ca=certificates.ca, certificate=stranger.certificate, key=stranger.key),
    }
    async with serving(listen, Plane().register) as address, dial(address, token=TOKEN, tls=shown[who]) as link:
        with pytest.raises(Unavailable):
            await unary(link, timeout_s=5.0)


@pytest.mark.anyio
async def test_bad_tls_files_are_named_before_anything_is_tried(
    tmp_path: Path, certificates: Certificates, strangers: Certificates
) -> None:
    missing, garbage = tmp_path / "missing.pem", tmp_path / "garbage.pem"
    garbage.write_bytes(b"\xffgarbage")
    ours, theirs = certificates.server(), strangers.server()
    bad = {
        r"missing\.pem cannot be read: No such file": ServerTls(certificate=missing, key=ours.key),
        r"garbage\.pem and .*server\.key are not a certificate": ServerTls(certificate=garbage, key=ours.key),
        r"server\.key are not a certificate and its own key": ServerTls(certificate=ours.certificate, key=theirs.key),
        r"garbage\.pem holds no certificates": certificates.server(client_ca=garbage),
    }
    for message, tls in bad.items():
        with pytest.raises(InvalidInput, match=message):
            async with serving(Listen(token=TOKEN, tls=tls)):
                pass


def test_bad_tls_files_of_a_client_are_named(tmp_path: Path, certificates: Certificates) -> None:
    garbage, client = tmp_path / "garbage.pem", certificates.client()
    garbage.write_text("garbage")
    bad = {
        r"missing\.pem cannot be read": ClientTls(ca=tmp_path / "missing.pem"),
        r"garbage\.pem holds no certificates": ClientTls(ca=garbage),
        "come together": ClientTls(ca=certificates.ca, certificate=client.certificate),
        r"garbage\.pem are not a certificate": ClientTls(
            ca=certificates.ca, certificate=client.certificate, key=garbage
        ),
    }
    for message, tls in bad.items():
        with pytest.raises(InvalidInput, match=message):
            dial("127.0.0.1:7000", token=TOKEN, tls=tls)
