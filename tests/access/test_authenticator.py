"""Permissions and lifetime of a credential."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.access.authenticator import Authenticator
from astraflow.access.authority import Authority
from astraflow.access.callers import RUN_TOKEN_CALLER, Caller, Role
from astraflow.access.credentials import CredentialSigner, is_credential, new_id, read_claims
from astraflow.access.revocations import Revocations
from astraflow.contract.errors import NotAuthenticated, Unavailable
from tests.errors import raises_code
from tests.fakes.clock import ManualClock

TOKEN = "the-run-token"


def node(*, until: float = 2000.0) -> Caller:
    return Caller(id=new_id(), role=Role.NODE, expires_at=until, name="n", pool="gpu")


def test_a_credential_is_accepted_until_it_expires() -> None:
    clock = ManualClock(start=1000.0)
    keeper, caller = Authenticator(TOKEN, clock=clock), node()
    assert keeper.caller(CredentialSigner(TOKEN).sign(caller), None) == caller
    clock.advance(1000.0)
    with raises_code(NotAuthenticated, "credential.expired"):
        keeper.caller(CredentialSigner(TOKEN).sign(caller), None)
    assert keeper.caller(TOKEN, None) is RUN_TOKEN_CALLER


def test_a_revocation_by_one_service_applies_to_the_others_at_once(tmp_path: Path) -> None:
    authority, clock = Authority.create(tmp_path / "a", run="test"), ManualClock(start=1000.0)
    first, second = (Authenticator(TOKEN, authority=authority, clock=clock) for _ in range(2))
    callers = [node() for _ in range(3)]
    for caller in callers:
        text = CredentialSigner(TOKEN).sign(caller)
        assert second.caller(text, None) == caller
        first.revoked.add({caller.id: caller.expires_at}, now=clock.wall())
        with raises_code(NotAuthenticated, "credential.revoked", "was revoked"):
            second.caller(text, None)


def test_revocations_are_removed_after_the_credential_expires(tmp_path: Path) -> None:
    revoked = Revocations(tmp_path)
    revoked.add({"old": 10.0}, now=5.0)
    revoked.add({"new": 30.0}, now=20.0)
    assert ("old" in revoked, "new" in revoked, "new" in Revocations(tmp_path)) == (False, True, True)


def test_a_revocation_that_cannot_be_written_holds_here_and_reaches_the_others_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Revocations(tmp_path), Revocations(tmp_path)
    first.add({"written": 30.0}, now=1.0)
    with monkeypatch.context() as full_disk:
        full_disk.setattr("os.fsync", _no_space)
        first.add({"lost": 30.0}, now=1.0)
        assert ("written" in first, "lost" in first, "lost" in second) == (True, True, False)
        assert "No space left" in first.problem
        first.publish(now=2.0)
        assert first.problem
    other = Revocations(tmp_path)
    other.add({"of another service": 30.0}, now=2.0)
    assert "lost" in first, "a newer file does not replace it"
    first.publish(now=3.0)
    assert first.problem == ""
    assert all(name in second for name in ("written", "lost", "of another service"))


def _no_space(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"3"])
def test_nothing_is_authenticated_while_revocations_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    authority = Authority.create(tmp_path / "a", run="test")
    (authority.folder / "revoked.json").write_bytes(content)
    keeper = Authenticator(TOKEN, authority=authority, clock=ManualClock(start=1000.0))
    with raises_code(Unavailable, "credential.unreadable_revocations"):
        keeper.caller(CredentialSigner(TOKEN).sign(node()), None)
    assert keeper.caller(TOKEN, None) is RUN_TOKEN_CALLER


@pytest.mark.long
@given(st.text(max_size=40), st.text(max_size=40), st.sampled_from(Role))
def test_a_signed_credential_decodes_to_its_caller(name: str, pool: str, role: Role) -> None:
    grants = Role.NODE if role is Role.JOINER else None
    caller = Caller(id=new_id(), role=role, grants=grants, expires_at=12.0, name=name, pool=pool)
    text = CredentialSigner(TOKEN).sign(caller)
    assert is_credential(text)
    assert CredentialSigner(TOKEN).read(text) == read_claims(text) == caller


@pytest.mark.long
@given(st.text(max_size=60))
def test_arbitrary_text_is_refused_as_a_credential(text: str) -> None:
    for given_ in (text, f"afc.{text}", f"afj.{text}", f"afc.{text}.{text}"):
        with pytest.raises(NotAuthenticated):
            Authenticator(TOKEN).caller(given_, None)


@given(st.data())
def test_a_credential_with_one_changed_letter_is_refused(data: st.DataObject) -> None:
    text = CredentialSigner(TOKEN).sign(node(until=2e10))
    at = data.draw(st.integers(0, len(text) - 2))
    other = data.draw(st.sampled_from("abcXYZ019-_.=").filter(lambda letter: letter != text[at]))
    with pytest.raises(NotAuthenticated):
        Authenticator(TOKEN).caller(text[:at] + other + text[at + 1 :], None)
