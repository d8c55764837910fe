"""Only what the run's key signed is taken in, fetched and served."""

import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import InvalidInput, NotTrusted
from astraflow.contract.ids import PolicyId, Version
from astraflow.contract.weights import Manifest, Probe, TransferPlan
from astraflow.weights.chunks import split
from astraflow.weights.config import PullConfig, WeightsConfig
from astraflow.weights.origins import Origin, Origins
from astraflow.weights.publisher import Publisher
from astraflow.weights.puller import Puller
from astraflow.weights.service import running
from astraflow.weights.signing import SigningKey, VerifyingKey, pinned_key, statement
from astraflow.wire.codec_weights import decode_manifest, encode_manifest
from astraflow.wire.server import Listen
from tests.weights.running import TOKEN, BriskClock, client_of
from tests.weights.versions import POLICY, full_file, history, layout, snapshot

KEY, OTHER = SigningKey.made(), SigningKey.made()

PROBE = Probe(tokens=bytes(8), lengths=(2,), scored_from=(1,), logprobs=bytes(4))


def manifest(**changes: object) -> Manifest:
    made, _ = layout(snapshot(), 3)
    return replace(made, metadata={"loss": "1", "step": "3"}, probe=PROBE, **changes)  # type: ignore[arg-type]  # fields


ALTERED: dict[str, Callable[[Manifest], Manifest]] = {
    "policy": lambda one: replace(one, policy=PolicyId("verifier")),
    "version": lambda one: replace(one, version=Version(one.version + 1)),
    "root hash": lambda one: replace(one, root_hash=bytes(32)),
    "metadata left out": lambda one: replace(one, metadata={}),
    "metadata moved from value to key": lambda one: replace(one, metadata={"loss1": "", "step": "3"}),
    "metadata value": lambda one: replace(one, metadata={"loss": "1", "step": "4"}),
    "probe left out": lambda one: replace(one, probe=None),
    "probe tokens": lambda one: replace(one, probe=replace(PROBE, tokens=bytes(7) + b"\1")),
    "probe lengths": lambda one: replace(one, probe=replace(PROBE, lengths=(1, 1))),
    "probe scored from": lambda one: replace(one, probe=replace(PROBE, scored_from=(0,))),
    "probe logprobs": lambda one: replace(one, probe=replace(PROBE, logprobs=b"\1" * 4)),
    "signature": lambda one: replace(one, signature=one.signature[:-1] + bytes([one.signature[-1] ^ 1])),
    "signature left out": lambda one: replace(one, signature=b""),
    "signature of another key": OTHER.signed,
}


def test_what_was_signed_is_trusted_after_its_way_over_the_wire() -> None:
    signed = KEY.signed(manifest())
    KEY.public.check(decode_manifest(encode_manifest(signed)))


@pytest.mark.parametrize("what", ALTERED)
def test_what_was_altered_is_refused(what: str) -> None:
    with pytest.raises(NotTrusted, match=r"version \d (was altered|is not signed)"):
        KEY.public.check(ALTERED[what](KEY.signed(manifest())))


def test_the_order_of_metadata_says_nothing() -> None:
    one, other = manifest(), replace(manifest(), metadata={"step": "3", "loss": "1"})
    assert statement(one) == statement(other)


PROBES = st.none() | st.builds(
    Probe,
    tokens=st.binary(max_size=9),
    lengths=st.lists(st.integers(0, 2**64 - 1), max_size=3).map(tuple),
    scored_from=st.lists(st.integers(0, 2**64 - 1), max_size=3).map(tuple),
    logprobs=st.binary(max_size=9),
)
MANIFESTS = st.builds(
    Manifest,
    policy=st.sampled_from(["a", "ab", "abc"]).map(PolicyId),
    version=st.integers(0, 3).map(Version),
    tensors=st.just(()),
    root_hash=st.binary(max_size=4),
    metadata=st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=3),
    probe=PROBES,
)


@given(MANIFESTS, MANIFESTS)
def test_no_two_manifests_have_one_statement(one: Manifest, other: Manifest) -> None:
    assert (statement(one) == statement(other)) == (one == other)


def test_a_key_goes_through_its_file_and_shows_itself_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "weights.key"
    path.touch(mode=0o600)
    path.write_text(KEY.text())
    read = SigningKey.read(path)
    assert read.public == KEY.public == VerifyingKey.parse(str(KEY.public))
    assert KEY.text() not in f"{read} {read!r} {vars(read)}"


def test_a_signing_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.key"
    path.write_text(KEY.text())
    path.chmod(stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP)
    with pytest.raises(InvalidInput, match="can be read by others: chmod 600"):
        SigningKey.read(path)


@pytest.mark.parametrize("content", ["", "c2hvcnQ=", "no base64: canary-5f2d"])
def test_what_is_no_signing_key_is_refused_without_being_shown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "weights.key"
    path.touch(mode=0o600)
    path.write_text(content)
    with pytest.raises(InvalidInput, match="holds no signing key") as found:
        SigningKey.read(path)
    assert "canary" not in str(found.value)
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        SigningKey.read(tmp_path / "missing")


@pytest.mark.parametrize(
    "text", ["", "x", "c2hvcnQ=", str(KEY.public)[:-4]], ids=["empty", "no base64", "short", "cut"]
)
def test_what_is_no_weights_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        VerifyingKey.parse(text)


def test_a_key_given_by_hand_and_one_told_by_dataflow_are_one() -> None:
    text, raw = str(KEY.public), KEY.public.raw
    assert pinned_key("", b"") is None
    assert pinned_key(text, b"") == pinned_key("", raw) == pinned_key(text, raw) == KEY.public
    with pytest.raises(InvalidInput, match="this is another run"):
        pinned_key(text, OTHER.public.raw)


@pytest.mark.anyio
@pytest.mark.parametrize(("signing", "match"), [(None, "is not signed"), (OTHER, "signed by another key")])
async def test_the_store_takes_in_only_what_the_pinned_key_signed(
    tmp_path: Path, signing: SigningKey | None, match: str
) -> None:
    first, second = history(2)
    async with AsyncExitStack() as stack:
        client = await _store(stack, tmp_path, trusted=KEY.public)
        async with Publisher(client, POLICY, signing=KEY) as publisher:
            await publisher.publish(Version(0), first)
        async with Publisher(client, POLICY, signing=signing, clock=BriskClock()) as publisher:
            await publisher.publish(Version(1), second)
            with pytest.raises(NotTrusted, match=match):
                await publisher.wait()
        assert [notice.version for notice in await client.versions(POLICY)] == [0]
        assert not list((tmp_path / "solver").glob("*.part"))


@pytest.mark.anyio
async def test_a_reader_refuses_what_a_lying_store_offers_and_keeps_what_it_has(tmp_path: Path) -> None:
    first, second = history(2)
    async with AsyncExitStack() as stack:
        client = Altering((await _store(stack, tmp_path))._link)
        publisher = await stack.enter_async_context(Publisher(client, POLICY, signing=KEY))
        puller = Puller(
            Origins([Origin("store", [client])]),
            POLICY,
            config=PullConfig(maps_shared=False),
            trusted=KEY.public,
            clock=BriskClock(),
        )
        await publisher.publish(Version(0), first)
        puller.commit((await puller.newer()).weights)
        await publisher.publish(Version(1), second)
        client.alter = lambda one: replace(one, metadata={"step": "9"})
        with pytest.raises(NotTrusted, match="version 1 was altered"):
            await puller.newer()
        assert client.fetched == 1
        assert puller.committed == 0
        client.alter = lambda one: one
        assert (await puller.newer()).weights.manifest.version == 1


@pytest.mark.anyio
async def test_a_signature_outlives_a_restart_of_the_store(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        client = await _store(stack, tmp_path, trusted=KEY.public)
        made, buffer = layout(snapshot())
        transfer, data = full_file(made, buffer)
        await client.publish(KEY.signed(made), transfer, split(memoryview(data)))
    async with AsyncExitStack() as stack:
        client = await _store(stack, tmp_path, trusted=KEY.public)
        KEY.public.check((await client.plan(POLICY, have=None)).manifest)


class Altering(WeightPlaneClient):
    """A store that changes what it was given."""

    alter: Callable[[Manifest], Manifest] = staticmethod(lambda one: one)
    fetched = 0

    async def plan(self, policy: PolicyId, *, have: Version | None, want: Version | None = None) -> TransferPlan:
        plan = await super().plan(policy, have=have, want=want)
        return replace(plan, manifest=self.alter(plan.manifest))

    async def fetch(self, *arguments: object, **options: object) -> AsyncGenerator:  # type: ignore[type-arg]  # counts
        self.fetched += 1
        async for chunk in super().fetch(*arguments, **options):  # type: ignore[arg-type]  # passed on
            yield chunk


async def _store(stack: AsyncExitStack, directory: Path, *, trusted: VerifyingKey | None = None) -> WeightPlaneClient:
    listen = Listen(token=TOKEN, drain_s=0.2)
    store = running(WeightsConfig(), listen=listen, directory=directory, trusted=trusted)
    return await stack.enter_async_context(client_of(await stack.enter_async_context(store)))
