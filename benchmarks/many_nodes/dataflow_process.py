"""`astraflow` without the limit of joins per address: the nodes of this load test share 127.0.0.1, those of a cluster
have addresses of their own."""

from dataclasses import replace
from typing import cast

from astraflow.cli.main import main
from astraflow.wire.routes import ROUTES, Route

JOIN = "/astraflow.v1.NodeData/Join"

if __name__ == "__main__":
    cast("dict[str, Route]", ROUTES)[JOIN] = replace(ROUTES[JOIN], rate=None)
    main()
