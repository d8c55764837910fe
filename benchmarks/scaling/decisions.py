"""Duration of a decision, on signals that change from tick to tick."""

import time

import numpy as np

from astraflow.contract.fleet.recommendations import Mode
from astraflow.contract.ids import PolicyId, PoolId
from astraflow.scaling.measurement.lifecycle import Phase
from astraflow.scaling.measurement.signals import NodeKind, NodeTable, Signals, StreamSignals
from astraflow.scaling.options import PoolOptions, Spec
from astraflow.scaling.rule.sizer import decide
from astraflow.scaling.rule.state import SizerState

POOLS = tuple(PoolId(name) for name in ("us", "eu", "apac"))


def decision_times_ms(*, nodes: int, decisions: int) -> tuple[float, float]:
    """Returns median and 99th percentile, in milliseconds. The demand rises and falls to cause all decisions."""
    spec = Spec(pools={pool: PoolOptions(max_nodes=nodes, price_per_hour=1.0, mode=Mode.ON) for pool in POOLS})
    rng, state, times_ms = np.random.default_rng(0), SizerState(), []
    for tick in range(decisions):
        signals = _signals(nodes, rng, at=30.0 * tick, pace=1.0 + 0.6 * np.sin(tick / 20))
        began = time.perf_counter()
        state = decide(signals, spec, state).state
        times_ms.append(1000 * (time.perf_counter() - began))
    return float(np.quantile(times_ms, 0.5)), float(np.quantile(times_ms, 0.99))


def _signals(nodes: int, rng: np.random.Generator, *, at: float, pace: float) -> Signals:
    busy_s = rng.uniform(300, 600, nodes)
    return Signals(
        at=at,
        kinds=tuple(NodeKind(pool=pool, hardware=name, price_per_hour=1.0) for pool in POOLS for name in "ab"),
        nodes=NodeTable(
            ids=tuple(f"node-{row}" for row in range(nodes)),
            kind=np.arange(nodes) % 6,
            phase=np.where(np.arange(nodes) < 0.95 * nodes, Phase.READY, Phase.BOOTING).astype(np.int64),
            age_s=rng.uniform(0, 600, nodes),
            silent_s=np.zeros(nodes),
            groups_long=rng.poisson(busy_s / 30).astype(float),
            busy_long_s=busy_s,
            groups_short=rng.poisson(busy_s / 100).astype(float),
            busy_short_s=busy_s * 0.3,
        ),
        streams=(
            StreamSignals(
                policy=PolicyId("solver"),
                compute_s=(120.0 / pace,) * 6,
                groups_per_step=nodes * 3.6,
                produced_per_usable=1.1,
                wait_share_300_s=0.0,
                wait_share_600_s=0.0,
                step_age_s=1.0,
                steps=50,
            ),
        ),
    )
