"""KEDA's external scaler: the advice on a pool as a metric, so that a cluster's autoscaler follows it.

The metric is the target itself and its value for each replica is 1: the autoscaler then wants as many replicas as the
target says. Where there is nothing to go by (no advice yet, a mode in which nobody is to act), the answer is an error,
on which KEDA leaves the size as it is: absence of data is never a reason to shrink.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from astraflow.contract.advice import Mode, PoolAdvice
from astraflow.contract.errors import Conflict, InvalidInput, Unavailable
from astraflow.contract.reports import Report
from astraflow.dataflow.keda_config import KedaConfig
from astraflow.dataflow.reporting.history import History
from astraflow.wire.listeners import SCALER
from astraflow.wire.pb import external_scaler_pb2 as pb
from astraflow.wire.pb.external_scaler_pb2_grpc import ExternalScalerServicer, add_ExternalScalerServicer_to_server
from astraflow.wire.server import serving_openly

METRIC = "astraflow_target_nodes"
POOL_KEY = "pool"
"""Of the manifest's metadata: which pool the scaled object is."""


@asynccontextmanager
async def serving_keda(config: KedaConfig, latest: Callable[[], Report | None], history: History) -> AsyncIterator[str]:
    """Answer KEDA for the block; yields the address. Raises: InvalidInput when the port is taken."""

    def register(server: grpc.aio.Server) -> None:
        add_ExternalScalerServicer_to_server(KedaService(latest, history.watch), server)

    async with serving_openly(config.host, config.port, config.tls, register, limits=SCALER) as address:
        yield address


class KedaService(ExternalScalerServicer):
    """Answers from the newest report."""

    def __init__(self, latest: Callable[[], Report | None], watch: Callable[[], AsyncIterator[Report]]) -> None:
        self._latest = latest
        self._watch = watch

    async def IsActive(self, request: pb.ScaledObjectRef, context: Any) -> pb.IsActiveResponse:  # noqa: N802
        """See the proto."""
        return pb.IsActiveResponse(result=self._advice(request).target > 0)

    async def StreamIsActive(  # noqa: N802
        self, request: pb.ScaledObjectRef, context: Any
    ) -> AsyncIterator[pb.IsActiveResponse]:
        """See the proto. Says nothing while there is nothing to go by."""
        pool, said = _pool_of(request), None
        async for report in self._watch():
            found = [advice for advice in report.advice if advice.pool == pool and _is_followed(advice)]
            for advice in found:
                if said != (advice.target > 0):
                    said = advice.target > 0
                    yield pb.IsActiveResponse(result=said)

    async def GetMetricSpec(  # noqa: N802
        self, request: pb.ScaledObjectRef, context: Any
    ) -> pb.GetMetricSpecResponse:
        """See the proto."""
        _pool_of(request)
        return pb.GetMetricSpecResponse(
            metricSpecs=[pb.MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1.0)]
        )

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Any) -> pb.GetMetricsResponse:  # noqa: N802
        """See the proto."""
        if request.metricName != METRIC:
            raise InvalidInput(f"no metric is called {request.metricName!r}; there is {METRIC}")
        target = self._advice(request.scaledObjectRef).target
        value = pb.MetricValue(metricName=METRIC, metricValue=target, metricValueFloat=float(target))
        return pb.GetMetricsResponse(metricValues=[value])

    def _advice(self, asked: pb.ScaledObjectRef) -> PoolAdvice:
        """Raises: InvalidInput, Unavailable when there is none (yet), Conflict for a pool that nobody is to follow."""
        pool = _pool_of(asked)
        report = self._latest()
        known = {str(advice.pool): advice for advice in report.advice} if report else {}
        if not known:
            raise Unavailable("there is no advice yet: it comes within a tick of the first report")
        advice = known.get(pool)
        if advice is None:
            raise InvalidInput(f"this run has no pool {pool!r}; it has {', '.join(known)}")
        if not _is_followed(advice):
            raise Conflict(
                f"the pool {pool} is in mode {advice.mode.value}, in which nobody acts by himself: set "
                f'dataflow.pools.{pool}.mode to "on" or "up-only"'
            )
        return advice


def _is_followed(advice: PoolAdvice) -> bool:
    return advice.mode in (Mode.ON, Mode.UP_ONLY)


def _pool_of(asked: pb.ScaledObjectRef) -> str:
    pool = asked.scalerMetadata.get(POOL_KEY, "")
    if not pool:
        raise InvalidInput(
            f"the metadata of {asked.namespace}/{asked.name} names no pool: give {POOL_KEY}, as in pool: gpu"
        )
    return str(pool)
