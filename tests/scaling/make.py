"""Signals with sensible defaults: one pool of identical nodes, and a trainer that needs twenty of them."""

from dataclasses import replace
from typing import Any

import numpy as np

from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PolicyId, PoolId
from astraflow.scaling.measurement.lifecycle import Phase
from astraflow.scaling.measurement.signals import NodeKind, NodeTable, Signals, StreamSignals
from astraflow.scaling.options import PoolOptions, SizerOptions, Spec
from astraflow.scaling.rule.sizer import decide
from astraflow.scaling.rule.state import SizerResult, SizerState

POOL = PoolId("gpu")
FIRST, SECOND = PoolId("first"), PoolId("second")
RATE = 1 / 30
"""Groups a second of a node."""
AT = 30_000.0
"""Time of the signals. Unix seconds."""


def stream(**more: Any) -> StreamSignals:
    """Returns a stream that needs 20 nodes: 64 groups every 120 s, of which 80 % are usable."""
    values: dict[str, Any] = {
        "policy": PolicyId("solver"),
        "compute_s": (120.0,) * 6,
        "groups_per_step": 64.0,
        "produced_per_usable": 1.25,
        "wait_share_300_s": 0.0,
        "wait_share_600_s": 0.0,
        "step_age_s": 10.0,
        "steps": 30,
    }
    return StreamSignals(**values | more)


def nodes(ready: int, *, pending: int = 0, pending_age_s: float = 60.0, rates: tuple[float, ...] = ()) -> NodeTable:
    """Returns nodes whose ready ones were busy for the whole window. rates: of each, instead of the default."""
    count = ready + pending
    is_ready = np.arange(count) < ready
    rate = np.array(rates or (RATE,) * ready) if ready else np.zeros(0)
    groups = np.append(rate, np.zeros(pending))
    return NodeTable(
        ids=tuple(f"node-{row}" for row in range(count)),
        kind=np.zeros(count, np.int64),
        phase=np.where(is_ready, Phase.READY, Phase.BOOTING).astype(np.int64),
        age_s=np.where(is_ready, 3600.0 + np.arange(count), pending_age_s),
        silent_s=np.zeros(count),
        groups_long=groups * 600.0,
        busy_long_s=np.where(is_ready, 600.0, 0.0),
        groups_short=groups * 180.0,
        busy_short_s=np.where(is_ready, 180.0, 0.0),
    )


def signals(table: NodeTable, *, at: float = AT, **more: Any) -> Signals:
    values: dict[str, Any] = {"kinds": (NodeKind(pool=POOL, price_per_hour=1.0),), "streams": (stream(),)}
    return Signals(at=at, nodes=table, **values | more)


def spec(
    *, mode: Mode = Mode.ON, is_kill_switch_on: bool = False, pool: dict[str, Any] | None = None, **options: Any
) -> Spec:
    bounds = PoolOptions(**{"mode": mode, "max_nodes": 100, **(pool or {})})
    return Spec(options=SizerOptions(**options), pools={POOL: bounds}, is_kill_switch_on=is_kill_switch_on)


def measured(count: int, *, needed: float = 16.0, **more: Any) -> Signals:
    """Returns equal nodes of which exactly `needed` carry the load, so that ratios of both are exact numbers.

    more: fields of the stream.
    """
    load = stream(**{"compute_s": (128.0,) * 6, "groups_per_step": 4 * needed, "produced_per_usable": 1.0} | more)
    return signals(nodes(count, rates=(1 / 32,) * count), streams=(load,))


def two_pools(first: int, second: int, *, needed: float = 16.0, **more: Any) -> Signals:
    """Returns nodes of two pools. more: fields of the signals."""
    inputs = measured(first + second, needed=needed)
    kind = np.array([0] * first + [1] * second)
    kinds = (NodeKind(pool=FIRST, price_per_hour=1.0), NodeKind(pool=SECOND, price_per_hour=2.0))
    return replace(inputs, nodes=replace(inputs.nodes, kind=kind), kinds=kinds, **more)


def decided(
    inputs: Signals,
    *,
    first: dict[str, Any] | None = None,
    second: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    **state: Any,
) -> SizerResult:
    """Decides for two pools that have had their present nodes for long.

    first, second, options: options of the pools and of the rule. spec, state: fields of the rule's other inputs.
    """
    plain: dict[str, Any] = {"mode": Mode.ON, "max_nodes": 100, "warm_nodes": 1, "launch_delay_s": 100.0}
    pools = {FIRST: PoolOptions(**plain | (first or {})), SECOND: PoolOptions(**plain | (second or {}))}
    counts = np.bincount(inputs.nodes.kind, minlength=2).tolist()
    present = {FIRST: counts[0], SECOND: counts[1]}
    values: dict[str, Any] = {"targets": present, "present_nodes": present, "acted_at": 0.0}
    rule = Spec(options=SizerOptions(**options or {}), pools=pools, **spec or {})
    return decide(inputs, rule, SizerState(**values | state))


def targets(result: SizerResult) -> list[int]:
    return [advice.target for advice in result.recommendations]
