"""`/api/v1`: everything the pages show and do, for programs."""

from web.routes.api import (
    decisions,
    documents,
    flows,
    grants,
    instances,
    launches,
    maintainer,
    nodes,
    pools,
    providers,
    reports,
    runs,
    trajectories,
)

_OF_RUNS = (runs, trajectories, launches)
_OF_FLEETS = (pools, providers, instances, nodes, decisions, maintainer)
ROUTERS = tuple(module.router for module in (*_OF_FLEETS, flows, reports, *_OF_RUNS, grants, documents))
