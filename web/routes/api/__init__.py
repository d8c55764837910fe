"""REST API under `/api/v1`: every query and command of the pages, for programs."""

from web.routes.api import (
    agent_sessions,
    api_docs,
    audit,
    credentials,
    decisions,
    flows,
    grants,
    instances,
    launches,
    maintainer,
    nodes,
    pools,
    providers,
    reports,
    run_comparison,
    runs,
    trajectories,
    users,
    views,
    weights,
)

_RUN_MODULES = (run_comparison, runs, trajectories, agent_sessions, launches)
_FLEET_MODULES = (pools, providers, instances, nodes, decisions, maintainer)
_ACCOUNT_MODULES = (grants, users, credentials, views, audit)
ROUTERS = tuple(
    module.router for module in (*_FLEET_MODULES, flows, reports, weights, *_RUN_MODULES, *_ACCOUNT_MODULES, api_docs)
)
