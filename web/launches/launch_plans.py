"""Plans of launches: a preview names its launch by a hash, and a launch with another content is refused.

Programs of the role agent start runs only from a plan, with limits of time and dollars, and few at a time.
"""

import hashlib

from astraflow.client.local_runs import LocalRunState
from astraflow.contract.errors import Conflict, NotPermitted
from web.launches.views import LaunchChoice
from web.requests.commands import Commands
from web.requests.run_lookup import Launches
from web.security.roles import Role

MAX_AGENT_RUNS = 2
"""Runs of one program of the role agent that may work at a time."""
MAX_AGENT_USD = 20.0
"""Largest cost of the nodes of such a run until its time limit. US dollars."""


def plan_of(choice: LaunchChoice) -> str:
    """Returns a hash of everything that a launch would do: its command and the effective recipe."""
    return hashlib.blake2b(f"{choice.command}\n{choice.form.toml}".encode(), digest_size=16).hexdigest()


def check_plan(commands: Commands, choice: LaunchChoice, *, plan: str) -> None:
    """Checks that a launch is the planned one. Raises: Conflict when it differs, NotPermitted for an agent that may not
    start it."""
    if plan and plan != plan_of(choice):
        raise Conflict(
            "cannot launch the run: it would differ from its plan; preview it again and send the new plan",
            code="launch.plan_changed",
        )
    viewer = commands.viewer
    if viewer.effective_role(viewer.at) is not Role.AGENT:
        return
    if not plan:
        raise NotPermitted(
            "cannot launch the run: a program of the role agent needs a plan; preview the launch and send its `plan`",
            code="launch.plan_missing",
        )
    if choice.options.limit_s is None:
        raise NotPermitted(
            "cannot launch the run: a program of the role agent needs a time limit; preview it with `limit_s`",
            code="launch.limit_missing",
        )
    usd_per_hour, hours = choice.largest_usd_per_hour, choice.options.limit_s / 3600
    if usd_per_hour is None or usd_per_hour * hours > MAX_AGENT_USD:
        cost = "an unknown amount" if usd_per_hour is None else f"${usd_per_hour * hours:,.2f}"
        raise NotPermitted(
            f"cannot launch the run: it may cost {cost}, and a program of the role agent may spend "
            f"${MAX_AGENT_USD:,.2f} on one; set a lower budget, fewer nodes or a shorter `limit_s`, or ask a person",
            code="launch.too_expensive",
        )


async def check_agent_limit(launches: Launches, commands: Commands) -> None:
    """Checks that a program of the role agent may start one more run. Called under the lock of launches, so that two
    launches at a time are counted one after the other. Raises: NotPermitted."""
    viewer = commands.viewer
    if viewer.effective_role(viewer.at) is not Role.AGENT:
        return
    own = [run for run in await launches.launcher.launches() if run.launch.actor == viewer.name]
    working = [run.name for run in own if run.state is not LocalRunState.ENDED]
    if len(working) >= MAX_AGENT_RUNS:
        raise NotPermitted(
            f"cannot launch the run: {viewer.name} already has {len(working)} runs at work; stop one of them: "
            f"{', '.join(working)}",
            code="launch.too_many_runs",
        )
