"""`/api/v1`: everything the pages show and do, for programs."""

from web.routes.api import (
    audit,
    comparing,
    decisions,
    documents,
    flows,
    grants,
    instances,
    launches,
    logins,
    maintainer,
    nodes,
    pools,
    providers,
    reports,
    runs,
    trajectories,
    users,
    views,
    weights,
)

_OF_RUNS = (comparing, runs, trajectories, launches)
_OF_FLEETS = (pools, providers, instances, nodes, decisions, maintainer)
_OF_PEOPLE = (grants, users, logins, views, audit)
ROUTERS = tuple(module.router for module in (*_OF_FLEETS, flows, reports, weights, *_OF_RUNS, *_OF_PEOPLE, documents))
