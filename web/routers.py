"""Routers of all features, in the order in which their routes are matched."""

from web import service_routes
from web.audit import api as audit_api
from web.audit import routes as audit
from web.comparison import api as comparison_api
from web.comparison import routes as comparison
from web.dataflow import api as dataflow_api
from web.dataflow import flow_routes
from web.dataflow import routes as dataflow
from web.decisions import api as decisions_api
from web.decisions import routes as decisions
from web.events import routes as events
from web.launches import api as launches_api
from web.launches import routes as launches
from web.login import routes as login
from web.maintainer import api as maintainer_api
from web.maintainer import routes as maintainer
from web.nodes import api as nodes_api
from web.nodes import routes as nodes
from web.overview import chart_routes as overview_charts
from web.overview import routes as overview
from web.pools import api as pools_api
from web.pools import chart_routes as pool_charts
from web.pools import kill_switch_routes
from web.pools import routes as pools
from web.runs import api as runs_api
from web.runs import chart_routes as run_charts
from web.runs import reports_api
from web.runs import routes as runs
from web.search import routes as search
from web.settings import credentials_api, grant_routes, grants_api, providers_api, users_api
from web.settings import routes as settings
from web.trajectories import api as trajectories_api
from web.trajectories import routes as trajectories
from web.trajectories import sessions_api
from web.weights import api as weights_api
from web.weights import routes as weights

_RUN_PAGES = (launches, comparison, runs, run_charts, trajectories)
_FLEET_PAGES = (pool_charts, pools, nodes, dataflow, weights, decisions, maintainer, flow_routes)
_OTHER_PAGES = (overview_charts, audit, settings, grant_routes, kill_switch_routes, search, login)
_PAGES = (service_routes, overview, events, *_RUN_PAGES, *_FLEET_PAGES, *_OTHER_PAGES)

_FLEET_ENDPOINTS = (pools_api, providers_api, nodes_api, dataflow_api, decisions_api, maintainer_api)
_RUN_ENDPOINTS = (
    reports_api,
    weights_api,
    comparison_api,
    runs_api,
    trajectories_api,
    sessions_api,
    launches_api,
)
_ACCOUNT_ENDPOINTS = (grants_api, users_api, credentials_api, audit_api)

PAGE_ROUTERS = tuple(module.router for module in _PAGES)
API_ROUTERS = tuple(module.router for module in (*_FLEET_ENDPOINTS, *_RUN_ENDPOINTS, *_ACCOUNT_ENDPOINTS))
"""Routers of the REST API, which its reference describes."""
