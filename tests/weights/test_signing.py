"""Only content signed with the run's key is accepted, fetched and served."""

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
from astraflow.weights.codec.chunks import split
from astraflow.weights.config import PullConfig, WeightsConfig
from astraflow.weights.publish.publisher import Publisher
from astraflow.weights.service import running
from astraflow.weights.signing import SigningKey, VerifyingKey, pinned_key, signed_payload
from astraflow.weights.transfer.puller import Puller
from astraflow.weights.transfer.weight_sources import WeightSource, WeightSources
from astraflow.wire.codecs.weights import decode_manifest, encode_manifest
from astraflow.wire.server import ListenOptions
from tests.errors import raises_code
from tests.weights.running import TOKEN, BriskClock, client_of
from tests.weights.versions import POLICY, full_file, history, layout, snapshot

KEY, OTHER = SigningKey.generate(), SigningKey.generate()

PROBE = Probe(tokens=bytes(8), lengths=(2,), scored_from=(1,), logprobs=bytes(4))


def manifest(**changes: object) -> Manifest:
    unsigned, _ = layout(snapshot(), 3)
    return replace(unsigned, metadata={"loss": "1", "step": "3"}, probe=PROBE, **changes)  # type: ignore[arg-type]  # fields


ALTERED: dict[str, Callable[[Manifest], Manifest]] = {
    "policy": lambda manifest: replace(manifest, policy=PolicyId("verifier")),
    "version": lambda manifest: replace(manifest, version=Version(manifest.version + 1)),
    "root hash": lambda manifest: replace(manifest, root_hash=bytes(32)),
    "metadata left out": lambda manifest: replace(manifest, metadata={}),
    "metadata moved from value to key": lambda manifest: replace(manifest, metadata={"loss1": "", "step": "3"}),
    "metadata value": lambda manifest: replace(manifest, metadata={"loss": "1", "step": "4"}),
    "probe left out": lambda manifest: replace(manifest, probe=None),
    "probe tokens": lambda manifest: replace(manifest, probe=replace(PROBE, tokens=bytes(7) + b"\1")),
    "probe lengths": lambda manifest: replace(manifest, probe=replace(PROBE, lengths=(1, 1))),
    "probe scored from": lambda manifest: replace(manifest, probe=replace(PROBE, scored_from=(0,))),
    "probe logprobs": lambda manifest: replace(manifest, probe=replace(PROBE, logprobs=b"\1" * 4)),
    "signature": lambda manifest: replace(
        manifest, signature=manifest.signature[:-1] + bytes([manifest.signature[-1] ^ 1])
    ),
    "signature left out": lambda manifest: replace(manifest, signature=b""),
    "signature of another key": OTHER.sign,
}


def test_a_signature_is_valid_after_transport() -> None:
    signed = KEY.sign(manifest())
    KEY.public.check(decode_manifest(encode_manifest(signed)))


@pytest.mark.parametrize("what", ALTERED)
def test_an_altered_manifest_is_refused(what: str) -> None:
    code = "weights.not_signed" if what == "signature left out" else "weights.wrong_signature"
    with raises_code(NotTrusted, code):
        KEY.public.check(ALTERED[what](KEY.sign(manifest())))


def test_the_signature_does_not_depend_on_the_order_of_metadata() -> None:
    first, second = manifest(), replace(manifest(), metadata={"step": "3", "loss": "1"})
    assert signed_payload(first) == signed_payload(second)


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


@pytest.mark.long
@given(MANIFESTS, MANIFESTS)
def test_different_manifests_have_different_signed_payloads(manifest: Manifest, other: Manifest) -> None:
    assert (signed_payload(manifest) == signed_payload(other)) == (manifest == other)


def test_a_key_round_trips_through_its_file_and_is_never_printed(tmp_path: Path) -> None:
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
    with pytest.raises(InvalidInput) as caught:
        SigningKey.read(path)
    assert caught.value.code == "weights.signing_key_exposed"


@pytest.mark.parametrize("content", ["", "c2hvcnQ=", "no base64: canary-5f2d"])
def test_an_invalid_signing_key_is_refused_and_not_printed(tmp_path: Path, content: str) -> None:
    path = tmp_path / "weights.key"
    path.touch(mode=0o600)
    path.write_text(content)
    with pytest.raises(InvalidInput) as refused:
        SigningKey.read(path)
    assert refused.value.code == "weights.invalid_signing_key"
    assert "canary" not in str(refused.value)
    with pytest.raises(InvalidInput) as caught:
        SigningKey.read(tmp_path / "missing")
    assert caught.value.code == "weights.invalid_signing_key"


@pytest.mark.parametrize(
    "text", ["", "x", "c2hvcnQ=", str(KEY.public)[:-4]], ids=["empty", "no base64", "short", "cut"]
)
def test_an_invalid_weights_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        VerifyingKey.parse(text)


def test_different_given_and_announced_keys_are_refused() -> None:
    text, raw = str(KEY.public), KEY.public.raw
    assert pinned_key("", b"") is None
    assert pinned_key(text, b"") == pinned_key("", raw) == pinned_key(text, raw) == KEY.public
    with pytest.raises(InvalidInput) as caught:
        pinned_key(text, OTHER.public.raw)
    assert caught.value.code == "weights.key_mismatch"


@pytest.mark.anyio
@pytest.mark.parametrize(("signing", "code"), [(None, "weights.not_signed"), (OTHER, "weights.wrong_signature")])
async def test_the_store_accepts_only_versions_of_the_pinned_key(
    tmp_path: Path, signing: SigningKey | None, code: str
) -> None:
    first, second = history(2)
    async with AsyncExitStack() as stack:
        client = await _store(stack, tmp_path, trusted=KEY.public)
        async with Publisher(client, POLICY, signing=KEY) as publisher:
            await publisher.publish(Version(0), first)
        async with Publisher(client, POLICY, signing=signing, clock=BriskClock()) as publisher:
            await publisher.publish(Version(1), second)
            with raises_code(NotTrusted, code):
                await publisher.wait()
        assert [notice.version for notice in await client.versions(POLICY)] == [0]
        assert not list((tmp_path / "solver").glob("*.part"))


@pytest.mark.anyio
async def test_a_reader_refuses_altered_manifests_and_keeps_its_version(tmp_path: Path) -> None:
    first, second = history(2)
    async with AsyncExitStack() as stack:
        client = Altering((await _store(stack, tmp_path))._link)
        publisher = await stack.enter_async_context(Publisher(client, POLICY, signing=KEY))
        puller = Puller(
            WeightSources([WeightSource("store", [client])]),
            POLICY,
            config=PullConfig(use_shared_memory=False),
            trusted=KEY.public,
            clock=BriskClock(),
        )
        await publisher.publish(Version(0), first)
        puller.commit((await puller.pull_newer()).weights)
        await publisher.publish(Version(1), second)
        client.alter = lambda manifest: replace(manifest, metadata={"step": "9"})
        with pytest.raises(NotTrusted) as caught:
            await puller.pull_newer()
        assert caught.value.code == "weights.wrong_signature"
        assert client.fetched == 1
        assert puller.committed == 0
        client.alter = lambda manifest: manifest
        assert (await puller.pull_newer()).weights.manifest.version == 1


@pytest.mark.anyio
async def test_a_signature_survives_a_restart_of_the_store(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        client = await _store(stack, tmp_path, trusted=KEY.public)
        unsigned, buffer = layout(snapshot())
        transfer, data = full_file(unsigned, buffer)
        await client.publish(KEY.sign(unsigned), transfer, split(memoryview(data)))
    async with AsyncExitStack() as stack:
        client = await _store(stack, tmp_path, trusted=KEY.public)
        KEY.public.check((await client.plan(POLICY, have=None)).manifest)


class Altering(WeightPlaneClient):
    """Store that alters the manifests in its answers."""

    alter: Callable[[Manifest], Manifest] = staticmethod(lambda manifest: manifest)
    fetched = 0

    async def plan(self, policy: PolicyId, *, have: Version | None, want: Version | None = None) -> TransferPlan:
        plan = await super().plan(policy, have=have, want=want)
        return replace(plan, manifest=self.alter(plan.manifest))

    async def fetch(self, *arguments: object, **options: object) -> AsyncGenerator:  # type: ignore[type-arg]  # counts
        self.fetched += 1
        async for chunk in super().fetch(*arguments, **options):  # type: ignore[arg-type]  # passed on
            yield chunk


async def _store(stack: AsyncExitStack, directory: Path, *, trusted: VerifyingKey | None = None) -> WeightPlaneClient:
    listen = ListenOptions(token=TOKEN, drain_s=0.2)
    store = running(WeightsConfig(), listen=listen, directory=directory, trusted=trusted)
    return await stack.enter_async_context(client_of(await stack.enter_async_context(store)))
