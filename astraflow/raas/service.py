"""Rollout role: serves one node from its first join to its exit, over all runs that dataflow serves meanwhile."""

import asyncio

from astraflow.access.callers import Role
from astraflow.client.credential import HeldCredential, join_run
from astraflow.contract.errors import RunComplete
from astraflow.raas.config import RaasConfig
from astraflow.raas.membership import RunChanged
from astraflow.raas.node import Node
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.logs import bind, get_logger
from astraflow.runtime.service import flattened_errors, run_until
from astraflow.wire.channel import ClientTls

log = get_logger()


async def serve(
    config: RaasConfig, *, dataflow: str, token: str, tls: ClientTls | None, stop: asyncio.Event, ca_hash: str = ""
) -> None:
    """Takes part in the run of the dataflow service at `dataflow` (`HOST:PORT`) until `stop` or a leave directive.

    Returns as well when the run is complete.

    Stopping takes at most three seconds, plus `config.drain_s` and `config.hand_back_s`. Dataflow sends
    the address of the weight store. A join token, or the run token with `ca_hash`, is first exchanged for a credential
    of the node, which is renewed while the node works: see `client.credential`.
    Raises: exception groups of InvalidInput, NotAuthenticated, ProtocolMismatch, and of Unavailable when dataflow is
    unreachable for `config.join_timeout_s`.
    """
    bind(name=config.name)
    address, credential = await join_run(
        dataflow,
        token=token,
        tls=tls,
        ca_hash=ca_hash,
        role=Role.NODE,
        name=config.name,
        pool=config.pool,
        give_up_after_s=config.join_timeout_s,
        credential_folder=config.credential_folder,
    )
    is_complete = False
    while not is_complete:
        try:
            await _serve_run(config, dataflow=address, credential=credential, stop=stop)
            is_complete = True
        except* RunChanged as changed:
            log.warning("run_changed", reason=str(changed.exceptions[0]))
        except* RunComplete as complete:
            log.info("run_complete", reason=str(flattened_errors(complete)[0]))
            is_complete = True


async def _serve_run(config: RaasConfig, *, dataflow: str, credential: HeldCredential, stop: asyncio.Event) -> None:
    async with credential.dial(dataflow) as link:
        node = Node(config, link, credential=credential, clock=SystemClock())
        await run_until(stop, node.run(), drain=node.stop)
