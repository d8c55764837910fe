"""KEDA's external scaler: exposes a pool's recommendation as a metric for the cluster's autoscaler.

The metric is the target itself and its value per replica is 1, so the autoscaler sets the number of replicas to the
target. Without a recommendation, or in a mode that does not act, the answer is an error. KEDA then keeps the current
size: missing data never shrinks a pool.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from astraflow.contract.errors import Conflict, InvalidInput, Unavailable
from astraflow.contract.fleet.recommendations import Mode, PoolRecommendation
from astraflow.contract.reports.report import Report
from astraflow.dataflow.endpoint_config import KedaConfig
from astraflow.dataflow.history.history import History
from astraflow.wire.listener_limits import SCALER_LIMITS
from astraflow.wire.pb import external_scaler_pb2 as pb
from astraflow.wire.pb.external_scaler_pb2_grpc import ExternalScalerServicer, add_ExternalScalerServicer_to_server
from astraflow.wire.server import serving_without_token

METRIC = "astraflow_target_nodes"
POOL_KEY = "pool"
"""Key of the manifest's metadata that names the pool of the scaled object."""


@asynccontextmanager
async def serving_keda(config: KedaConfig, latest: Callable[[], Report | None], history: History) -> AsyncIterator[str]:
    """Serves KEDA during the block; yields the address. Raises: InvalidInput when the port is taken."""

    def register(server: grpc.aio.Server) -> None:
        add_ExternalScalerServicer_to_server(KedaService(latest, history.watch), server)

    async with serving_without_token(config.host, config.port, config.tls, register, limits=SCALER_LIMITS) as address:
        yield address


class KedaService(ExternalScalerServicer):
    """Answers KEDA from the newest report."""

    def __init__(self, latest: Callable[[], Report | None], watch: Callable[[], AsyncIterator[Report]]) -> None:
        self._latest = latest
        self._watch = watch

    async def IsActive(self, request: pb.ScaledObjectRef, context: Any) -> pb.IsActiveResponse:
        """See the proto."""
        return pb.IsActiveResponse(result=self._recommendation(request).target > 0)

    async def StreamIsActive(self, request: pb.ScaledObjectRef, context: Any) -> AsyncIterator[pb.IsActiveResponse]:
        """See the proto. Yields nothing while there is no recommendation to follow."""
        pool, last_result = _pool_of(request), None
        async for report in self._watch():
            followed = [
                recommendation
                for recommendation in report.recommendations
                if recommendation.pool == pool and _is_acted_on(recommendation)
            ]
            for recommendation in followed:
                if last_result != (recommendation.target > 0):
                    last_result = recommendation.target > 0
                    yield pb.IsActiveResponse(result=last_result)

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Any) -> pb.GetMetricSpecResponse:
        """See the proto."""
        _pool_of(request)
        return pb.GetMetricSpecResponse(
            metricSpecs=[pb.MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1.0)]
        )

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Any) -> pb.GetMetricsResponse:
        """See the proto."""
        if request.metricName != METRIC:
            raise InvalidInput(
                f"cannot get metric {request.metricName!r}: this scaler has only {METRIC!r}; use that metric",
                code="keda.unknown_metric",
            )
        target = self._recommendation(request.scaledObjectRef).target
        value = pb.MetricValue(metricName=METRIC, metricValue=target, metricValueFloat=float(target))
        return pb.GetMetricsResponse(metricValues=[value])

    def _recommendation(self, scaled_object: pb.ScaledObjectRef) -> PoolRecommendation:
        """Returns the recommendation of the pool that the scaled object names.

        Raises: InvalidInput for an unknown pool, Unavailable without a recommendation, Conflict in a mode that does not
        act.
        """
        pool = _pool_of(scaled_object)
        report = self._latest()
        recommendations = (
            {str(recommendation.pool): recommendation for recommendation in report.recommendations} if report else {}
        )
        if not recommendations:
            raise Unavailable(
                f"cannot read the target of pool {pool!r}: there is no recommendation yet; retry later",
                code="keda.no_recommendation",
            )
        recommendation = recommendations.get(pool)
        if recommendation is None:
            raise InvalidInput(
                f"cannot read the target of pool {pool!r}: this run has no such pool; use one of "
                f"{', '.join(recommendations)}",
                code="keda.unknown_pool",
            )
        if not _is_acted_on(recommendation):
            raise Conflict(
                f"cannot read the target of pool {pool!r}: its mode is {recommendation.mode.value!r}, which only "
                f'recommends; set dataflow.pools.{pool}.mode to "on" or "up-only"',
                code="keda.pool_not_automatic",
            )
        return recommendation


def _is_acted_on(recommendation: PoolRecommendation) -> bool:
    return recommendation.mode in (Mode.ON, Mode.UP_ONLY)


def _pool_of(scaled_object: pb.ScaledObjectRef) -> str:
    pool = scaled_object.scalerMetadata.get(POOL_KEY, "")
    if not pool:
        raise InvalidInput(
            f"cannot read a target for {scaled_object.namespace}/{scaled_object.name}: its metadata names no pool; set "
            f"{POOL_KEY}, for example pool: gpu",
            code="keda.no_pool",
        )
    return str(pool)
