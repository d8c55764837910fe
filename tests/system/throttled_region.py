"""A run in two regions whose budget is spent, and a region whose machines slow down.

The rule sizes by measured node throughput and would order more, but the hourly budget is spent on nodes at a
fifth of their speed. The rule compares a node with others of its pool, where all are equally slow. A maintainer sees
that nodes with the same hardware are five times as fast elsewhere and retires slow ones; the rule replaces them in the
same region or, where that region starts none, in the other.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.system.two_regions import EU, US, Regions, running_regions

USD_PER_HOUR_MAX = 6.5
"""Budget of exactly six nodes in any region."""
BEGINS_WITH = {EU: 4, US: 2}
MOST = {EU: 4, US: 6}
PACE = 0.2
"""Speed of a slow machine, as a share."""

RECIPE = """
extends = "{smoke}"
name = "smoke"
evaluations = {{}}

[stop]
reward = 2.0
steps = 1000000

[policies.solver.backend]
step_s = 1.5

[nodes]
capacity = 2

[flows.train.workflow]
max_new_tokens = 500

[dataflow.scaling]
window_long_s = 60.0
window_widest_s = 60.0
window_short_s = 18.0

[dataflow.pools.eu]
mode = "on"
min_nodes = 1
max_nodes = 4

[dataflow.pools.us]
mode = "on"
min_nodes = 1
max_nodes = 6

[fleet]
cluster = "regions"
retire_on_stop = true
times = {{ sweep_s = 1.0, follow_s = 1.0, quarantine_s = 10.0, dataflow_timeout_s = 30.0, retry_s = 1.0 }}
limits = {{ cool_down_s = 1.0 }}
budget = {{ usd_per_hour_max = 6.5 }}

[fleet.providers.here-eu]
kind = "local_process"
types = {{ process = 1.0 }}
program = {eu_program}

[fleet.providers.here-us]
kind = "local_process"
types = {{ process = 1.1 }}
program = {us_program}

[fleet.pools.eu]
provider = "here-eu"
mode = "on"
nodes = 4
min_nodes = 1
max_nodes = 4
region = "eu"
capacity = 2
drain_s = 5.0
engine = {eu_engine}

[fleet.pools.us]
provider = "here-us"
mode = "on"
nodes = 2
min_nodes = 1
max_nodes = 6
region = "us"
capacity = 2
drain_s = 5.0
engine = {us_engine}

[maintainer]
mode = "off"

[maintainer.model]
kind = "messages_api"
model = "simulated"
base_url = "{url}"
prices = {{ input = 1.0, output = 5.0 }}

[maintainer.watch]
check_interval_s = 6.0
observe_interval_s = 0.5
wake_pause_s = 1.0
straggler_s = 3.0
smoothing_s = 3.0
"""


@asynccontextmanager
async def running_throttled(directory: Path, *, has_maintainer: bool = True) -> AsyncIterator[Regions]:
    """Runs until the block ends. Its model is the good character, unless a test selects another."""
    async with running_regions(
        directory, has_maintainer=has_maintainer, recipe=RECIPE, begins_with=BEGINS_WITH
    ) as regions:
        yield regions
