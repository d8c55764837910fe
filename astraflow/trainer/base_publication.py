"""Publication of the frozen base of adapters: once, as a policy of its own, before the adapters' first version."""

from collections.abc import Mapping

from astraflow.client.weight_plane import WeightPlaneClient
from astraflow.contract.errors import Conflict
from astraflow.contract.ids import PolicyId, Version, adapter_base_of
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import retry
from astraflow.trainer.driver import BackendDriver
from astraflow.weights.adapters import AdapterBinding
from astraflow.weights.publish.publisher import PublishConfig, Publisher
from astraflow.weights.signing import SigningKey

log = get_logger()

_VERSION = Version(0)
"""Only version of a base."""


async def publish_base(
    driver: BackendDriver,
    client: WeightPlaneClient,
    policy: PolicyId,
    *,
    config: PublishConfig,
    signing: SigningKey | None,
    clock: Clock,
) -> Mapping[str, str]:
    """Publishes the base of a policy that trains adapters, unless the store has it; returns the metadata of versions.

    Returns nothing for a policy whose versions are whole models. The base is copied only to be published.
    Raises: Conflict when the store has another base for this policy; the errors of `Publisher.wait`.
    """
    base = driver.frozen_base
    if base is None:
        return {}
    name = adapter_base_of(policy)
    binding = AdapterBinding(base=name, base_version=_VERSION, base_root=base.root_hash, scale=base.scale)
    notices = await retry(lambda: client.versions(name), what=f"looking up {name}", clock=clock)
    stored = {notice.root_hash for notice in notices}
    if stored - {base.root_hash}:
        raise Conflict(
            f"cannot publish the base of {policy!r}: the weight store has other weights as {name!r}; use the model and "
            "weights_dtype that the run began with, or start a new run",
            code="trainer.other_base_published",
        )
    if stored:
        log.info("base_already_published", policy=name)
        return binding.metadata()
    async with Publisher(client, name, config=config, signing=signing, clock=clock) as publisher:
        staged = await publisher.begin_version(base.shapes)
        await driver.write_base(base, staged)
        await publisher.publish(_VERSION, staged)
    log.info("base_published", policy=name, bytes=sum(spec.size_bytes for spec in staged.specs))
    return binding.metadata()
