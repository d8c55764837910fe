"""The rollout role: one node, from its first join to its goodbye, over however many runs are served at its address."""

import asyncio

from astraflow.access.callers import Role
from astraflow.client.badge import Badge, badge_for
from astraflow.contract.errors import RunComplete
from astraflow.raas.config import RaasConfig
from astraflow.raas.membership import RunChanged
from astraflow.raas.node import Node
from astraflow.runtime.clock import SystemClock
from astraflow.runtime.logs import bind, get_logger
from astraflow.runtime.service import leaves, run_until
from astraflow.wire.channel import ClientTls

log = get_logger()


async def serve(
    config: RaasConfig, *, dataflow: str, token: str, tls: ClientTls | None, stop: asyncio.Event, ca_hash: str = ""
) -> None:
    """Take part in the run of the dataflow service at `dataflow` (`HOST:PORT`) until `stop`, or until sent away.

    Returns as well when the run is complete.

    Stopping takes at most three seconds, plus `config.drain_s` and `config.hand_back_s`. The weight store is where
    dataflow says it is. A join token, or the run token with `ca_hash`, is exchanged for a credential of the node's own
    first, which is renewed while the node works: see `client.badge`.
    Raises: exception groups of InvalidInput, NotAuthenticated, ProtocolMismatch, and of Unavailable when dataflow is
    out of reach for `config.join_timeout_s`, all saying what to do.
    """
    bind(name=config.name)
    address, badge = await badge_for(
        dataflow,
        token=token,
        tls=tls,
        ca_hash=ca_hash,
        role=Role.NODE,
        name=config.name,
        pool=config.pool,
        give_up_after_s=config.join_timeout_s,
        keep=config.keep,
    )
    is_over = False
    while not is_over:
        try:
            await _serve_run(config, dataflow=address, badge=badge, stop=stop)
            is_over = True
        except* RunChanged as changed:
            log.warning("beginning_anew", reason=str(changed.exceptions[0]))
        except* RunComplete as complete:
            log.info("run_complete", reason=str(leaves(complete)[0]))
            is_over = True


async def _serve_run(config: RaasConfig, *, dataflow: str, badge: Badge, stop: asyncio.Event) -> None:
    async with badge.dial(dataflow) as link:
        node = Node(config, link, badge=badge, clock=SystemClock())
        await run_until(stop, node.work(), drain=node.stop)
