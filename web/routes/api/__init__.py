"""`/api/v1`: everything the pages show and do, for programs."""

from web.routes.api import decisions, documents, instances, maintainer, nodes, pools, reports, runs

ROUTERS = tuple(module.router for module in (pools, instances, nodes, decisions, maintainer, reports, runs, documents))
