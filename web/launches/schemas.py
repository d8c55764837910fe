"""API schemas of `/api/v1/launches`."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from astraflow.client.local_runs import LocalRun
from astraflow.contract.launching import FormCheck, FormProblem, PoolEstimate, ProviderCheck, RecipeCard
from web.rest.common import NAME, WITHOUT_NUL, NumberedPage, Reason, RequestBody, ResponseModel
from web.rest.contract_models import fields_of

MAX_SETTINGS = 200
MAX_TIME_LIMIT_S = 1e7
MAX_TEXT = 64 * 1024
"""Longest text of a recipe. Characters."""

SETTING_KEY_PATTERN = r"^[A-Za-z0-9_.\-]{1,200}$"
SettingKey = Annotated[str, StringConstraints(pattern=SETTING_KEY_PATTERN)]
SettingText = Annotated[str, StringConstraints(max_length=400, pattern=r"^[^\x00-\x1f\x7f]*$")]
Setting = bool | int | Annotated[float, Field(allow_inf_nan=False)] | SettingText | None

RecipeName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=NAME,
        description="A built-in recipe (`astraflow recipes`), or one from the web process's recipe folder.",
    ),
]
EarlierRun = Annotated[
    str,
    Field(min_length=1, max_length=128, pattern=NAME, description="Name of an earlier run of the page's machine."),
]
ForkStep = Annotated[
    int | None,
    Field(ge=0, le=2**53, description="Step whose kept checkpoint the new run begins with; null: new weights."),
]
FreshOptimizer = Annotated[bool, Field(description="With a step: begin with a new state of the optimizer.")]
UnusedReason = Annotated[
    str,
    Field(
        max_length=2000,
        pattern=WITHOUT_NUL,
        description="Accepted and ignored, so that the same body can be sent to launch.",
    ),
]

Plan = Annotated[
    str,
    Field(
        max_length=64,
        pattern=WITHOUT_NUL,
        description="`plan` of a preview: the launch is refused when it would differ from it. Required of agents.",
    ),
]

_EXAMPLE: dict[str, Any] = {
    "recipe": "smoke",
    "set": {"stop.steps": 200},
    "ends_by_itself": True,
    "reason": "a first look",
}
_CLONE: dict[str, Any] = {"of": "smoke-20260101-000000-0000", "set": {"seed": 2}, "reason": "another seed"}


@fields_of(RecipeCard, without=("name_or_path", "parts"))
class RecipeResponse(ResponseModel):
    """Recipe that can be launched."""


class LaunchSettings(RequestBody):
    """Overrides of a recipe or an earlier run."""

    set: dict[SettingKey, Setting] = Field(
        default_factory=dict,
        max_length=MAX_SETTINGS,
        description="Settings to override, by key.",
        json_schema_extra={"propertyNames": {"pattern": SETTING_KEY_PATTERN}},
    )
    text: str | None = Field(
        None,
        max_length=MAX_TEXT,
        pattern=WITHOUT_NUL,
        description="The recipe as TOML: settings in which it differs are overridden, then those of `set`.",
    )
    fleet: bool | None = Field(
        None,
        description="Start a fleet service that starts the nodes and sizes their pools. Default: the recipe's or the "
        "earlier run's value.",
    )
    ends_by_itself: bool | None = Field(
        None, description="Stop the run at the recipe's stop condition. Default: true, or the earlier run's value."
    )
    limit_s: float | None = Field(
        None,
        ge=1,
        le=MAX_TIME_LIMIT_S,
        allow_inf_nan=False,
        description="Stop the run after so many seconds. Default: no limit, or the earlier run's; null: no limit.",
    )


class LaunchPreviewRequest(LaunchSettings):
    """Preview of a recipe's launch."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    recipe: RecipeName
    reason: UnusedReason = ""


class ClonePreviewRequest(LaunchSettings):
    """Preview of a launch with the settings of an earlier run."""

    model_config = ConfigDict(json_schema_extra={"examples": [_CLONE]})

    of: EarlierRun
    step: ForkStep = None
    fresh_optimizer: FreshOptimizer = False
    reason: UnusedReason = ""


class LaunchRunRequest(LaunchPreviewRequest):
    """Launch of a recipe."""

    reason: Reason
    plan: Plan = ""


class CloneRunRequest(ClonePreviewRequest):
    """Launch with the settings of an earlier run."""

    reason: Reason
    plan: Plan = ""


@fields_of(LocalRun, without=("folder", "facts", "launch", "metadata"))
class LaunchResponse(ResponseModel):
    """Run of the page's machine."""

    recipe: str = Field(description="Name of the recipe that it was launched from.")
    actor: str = Field(description="User who launched it; empty for a run of the terminal.")
    reason: str = Field(description="Reason of the launch; empty without one.")
    launched_at: float = Field(description="Time of its launch. Unix seconds.")

    folder: str = Field(description="Folder of the run on this machine.")
    fleet: bool = Field(description="Whether a fleet service starts the nodes.")
    ends_by_itself: bool = Field(description="Whether the run stops at the stop condition of the recipe.")
    limit_s: float | None = Field(description="Time after which the run stops. Seconds; null for none.")
    can_resume: bool = Field(description="Whether it can be resumed.")
    logs: list[str] = Field(description="Processes that have a log.")


class LaunchList(NumberedPage[LaunchResponse]):
    """Page of runs, newest first."""


class LogResponse(ResponseModel):
    """Part of a log."""

    program: str = Field(description="Name of the process.")
    text: str = Field(description="Part of its log.")
    end: int = Field(description="Offset of the end: `after` of the next request.")


class EquivalentRequestResponse(ResponseModel):
    """Equivalent API request."""

    method: Literal["POST"] = Field(description="HTTP method.")
    address: str = Field(description="Path of the request.", examples=["/api/v1/launches"])
    body: dict[str, Any] = Field(description="Body, with a placeholder for the reason.", examples=[_EXAMPLE])


class LaunchPreviewResponse(ResponseModel):
    """Preview of a launch."""

    recipe: str = Field(description="Name of the recipe; empty for an earlier run.")
    of: str = Field(description="Name of the earlier run; empty for a recipe.", examples=[""])
    is_ready: bool = Field(description="Whether it can be launched as it is.")
    plan: str = Field(
        description="Stands for this launch: send it with the launch, which is refused if it would differ. Empty "
        "unless `is_ready`.",
        examples=["5d1f6c0e2b7a4938"],
    )
    problem: str = Field(description="Problem other than the settings'; empty without one.")
    problems: list[FormProblem] = Field(description="Problems with the settings.", examples=[[]])
    checks: list[FormCheck] = Field(
        description="Checks of this machine: disk, memory, ports. They do not block a launch."
    )
    machines: str = Field(
        description="Where the nodes come from, in one sentence.", examples=["processes on this machine"]
    )
    cost: str = Field(description="Cost of the nodes, in one sentence.", examples=["nothing: no node has a price"])
    pools: list[PoolEstimate] = Field(
        description="Pools with prices; empty if the nodes are processes on this machine."
    )
    usd_per_hour: float = Field(description="Price of the nodes that the run starts without a fleet service.")
    usd_per_hour_max: float | None = Field(description="Budget of the fleet; null for none.")
    usd_per_day_max: float | None = Field(description="Budget of the fleet. US dollars per day; null for none.")
    provider_checks: list[ProviderCheck] = Field(description="Results of the providers' preflight checks.")
    provider_problem: str = Field(
        description="Why the preflight checks could not run; empty if they ran.", examples=[""]
    )
    toml: str = Field(description="Effective recipe.", examples=['name = "smoke"'])
    command: str = Field(
        description="Equivalent command line.", examples=["astraflow run smoke --headless --set stop.steps=200"]
    )
    request: EquivalentRequestResponse = Field(description="The launch as a request to the API.")
    fleet: bool = Field(description="Whether a fleet service starts the nodes.")
    ends_by_itself: bool = Field(description="Whether the run stops at the stop condition of the recipe.")
    limit_s: float | None = Field(description="Time after which the run stops. Seconds; null for none.")
