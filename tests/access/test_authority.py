"""The run's certificate authority: its files, the certificates that it issues, and its refusals."""

import ssl
import stat
import time
from pathlib import Path

import pytest
from cryptography import x509

from astraflow.access.authority import Authority, checked_pin, key_digest, new_request, pin_of, read_certificate
from astraflow.access.callers import Caller, Role
from astraflow.access.credentials import new_id
from astraflow.contract.errors import InvalidInput, NotAuthenticated
from tests.errors import raises_code


def holder(role: Role = Role.NODE, name: str = "gpu-1") -> Caller:
    return Caller(id=new_id(), role=role, expires_at=time.time() + 3600, name=name, pool="gpu")


def test_the_authority_key_is_private_and_the_pin_survives_a_restart(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "authority", run="test")
    assert stat.S_IMODE((tmp_path / "authority" / "ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "authority").stat().st_mode) == 0o700
    again = Authority.load(tmp_path / "authority")
    assert (again.pin, again.pem) == (authority.pin, authority.pem)
    assert authority.pin == checked_pin(authority.pin.removeprefix("sha256:").upper())


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    Authority.create(tmp_path, run="test")
    (tmp_path / "ca.key").chmod(0o640)
    with raises_code(InvalidInput, "authority.key_exposed"):
        Authority.load(tmp_path)


@pytest.mark.parametrize(
    ("damage", "code"),
    [("missing", "authority.not_found"), ("garbage", "authority.damaged"), ("another key", "authority.damaged")],
)
def test_a_folder_without_a_valid_authority_is_refused(tmp_path: Path, damage: str, code: str) -> None:
    folder = tmp_path / "authority"
    Authority.create(folder, run="test")
    if damage == "missing":
        (folder / "ca.key").unlink()
    else:
        other = Authority.create(tmp_path / "other", run="test")
        (folder / "ca.key").write_bytes((other.folder / "ca.key").read_bytes() if "key" in damage else b"canary-9")
    with raises_code(InvalidInput, code) as caught:
        Authority.load(folder)
    assert "canary" not in str(caught.value)


def test_a_callers_certificate_has_its_identity_and_only_client_use(tmp_path: Path) -> None:
    caller, (_, request) = holder(), new_request()
    pem = Authority.create(tmp_path, run="test").for_caller(request, caller)
    shown = read_certificate(pem)
    assert (shown.identity, f"{shown.serial:032x}") == ("astraflow://node/gpu-1", caller.id)
    assert shown.expires_at == pytest.approx(caller.expires_at, abs=1)
    certificate = x509.load_pem_x509_certificate(pem)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [use._name for use in usage] == ["clientAuth"]
    with pytest.raises(x509.ExtensionNotFound):
        certificate.extensions.get_extension_for_class(x509.BasicConstraints)


def test_only_the_key_of_a_signing_request_is_used(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import NameOID

    wish = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("astraflow://admin/")])
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "admin")]))
        .add_extension(wish, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    )
    pem = Authority.create(tmp_path, run="test").for_caller(request.public_bytes(Encoding.PEM), holder())
    assert read_certificate(pem).identity == "astraflow://node/gpu-1"
    with pytest.raises(x509.ExtensionNotFound):
        x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.BasicConstraints)


def test_a_service_certificate_has_all_names_of_the_service(tmp_path: Path) -> None:
    own = Authority.create(tmp_path, run="test").for_service("0.0.0.0", ("flow.example.org", "10.0.0.5"))  # noqa: S104 (a name in the certificate)
    names = x509.load_pem_x509_certificates(own.certificate)[0].extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert {"flow.example.org", "localhost"} <= set(names.value.get_values_for_type(x509.DNSName))
    addresses = {str(address) for address in names.value.get_values_for_type(x509.IPAddress)}
    assert {"10.0.0.5", "127.0.0.1", "::1"} == addresses
    assert b"PRIVATE" not in repr(own).encode()


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, run="test")
    with raises_code(NotAuthenticated, "certificate.invalid"):
        read_certificate(authority.pem)
    with pytest.raises(NotAuthenticated):
        read_certificate(b"garbage")


def test_each_signing_request_has_a_new_key() -> None:
    (_, first), (_, second) = new_request(), new_request()
    assert key_digest(first) == key_digest(first) != key_digest(second)


@pytest.mark.parametrize("text", ["", "sha256:", "md5:00", "sha256:" + "g" * 64, "sha256:" + "0" * 63])
def test_an_invalid_pin_is_refused(text: str) -> None:
    with raises_code(InvalidInput, "tls.invalid_pin"):
        checked_pin(text)


def test_the_pin_matches_the_certificate_which_openssl_can_load(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, run="test")
    assert pin_of(x509.load_pem_x509_certificate(authority.pem)) == authority.pin
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.pem.decode())
    assert context.cert_store_stats()["x509_ca"] == 1
