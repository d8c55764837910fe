"""API schemas of `/api/v1/launches`."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from web.launcher.launcher import LaunchState
from web.rest.common import NAME, Reason, RequestBody, ResponseModel
from web.rest.fleet_schemas import CheckResponse

MAX_SETTINGS = 200
MAX_TIME_LIMIT_S = 1e7

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
    Field(
        min_length=1, max_length=128, pattern=NAME, description="Name of an earlier run that was launched from here."
    ),
]
UnusedReason = Annotated[
    str, Field(max_length=2000, description="Accepted and ignored, so that the same body can be sent to launch.")
]

_EXAMPLE: dict[str, Any] = {
    "recipe": "smoke",
    "set": {"stop.steps": 200},
    "ends_by_itself": True,
    "reason": "a first look",
}
_CLONE: dict[str, Any] = {"of": "smoke-20260101-000000-0000", "set": {"seed": 2}, "reason": "another seed"}


class RecipeNeedsResponse(ResponseModel):
    """Hardware that a recipe needs on the machine that launches it."""

    gpus: int = Field(description="GPUs of its trainers and engines; 0 for a recipe that runs on CPUs.")
    gpu_memory_gb: float = Field(description="Memory of each GPU, in gigabytes; 0 if any will do.")
    memory_gb: float = Field(description="Main memory, in gigabytes.")
    disk_gb: float = Field(description="Disk space of the run, in gigabytes.")


class RecipeObstacleResponse(ResponseModel):
    """Reason why this machine cannot run a recipe as it is."""

    cause: str = Field(examples=["it needs 8 GPUs with 80 GB each; this machine has none"])
    remedy: str = Field(examples=["launch it on a machine with 8 GPUs with 80 GB each, or with pools that have them"])


class RecipeResponse(ResponseModel):
    """Recipe that can be launched."""

    name: str = Field(description="Name for a launch.", examples=["smoke"])
    summary: str
    simulated: list[str] = Field(description="Kinds of its simulated plugins.", examples=[["scripted"]])
    problem: str = Field(description="Why it cannot be launched at all; empty if it can.", examples=[""])
    shows: str = Field(description="What a run shows; empty if its file does not say.")
    minutes: float | None = Field(description="Minutes to its stop condition; null if they were not measured.")
    measured_on: str = Field(description="Machine on which the minutes were measured.", examples=["two cores"])
    needs: RecipeNeedsResponse
    obstacles: list[RecipeObstacleResponse] = Field(
        description="Why this machine cannot run it as it is; empty if it can, as far as is known."
    )


class LaunchSettings(RequestBody):
    """Overrides of a recipe or an earlier run."""

    set: dict[SettingKey, Setting] = Field(
        default_factory=dict,
        max_length=MAX_SETTINGS,
        description="Settings to override, by key.",
        json_schema_extra={"propertyNames": {"pattern": SETTING_KEY_PATTERN}},
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


class LaunchRunRequest(LaunchSettings):
    """Launch of a recipe."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    recipe: RecipeName
    reason: Reason


class CloneRunRequest(LaunchSettings):
    """Launch with the settings of an earlier run."""

    model_config = ConfigDict(json_schema_extra={"examples": [_CLONE]})

    of: EarlierRun
    reason: Reason


class LaunchPreviewRequest(LaunchSettings):
    """Preview of a recipe's launch."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    recipe: RecipeName
    reason: UnusedReason = ""


class ClonePreviewRequest(LaunchSettings):
    """Preview of a launch with the settings of an earlier run."""

    model_config = ConfigDict(json_schema_extra={"examples": [_CLONE]})

    of: EarlierRun
    reason: UnusedReason = ""


class LaunchResponse(ResponseModel):
    """Launched run."""

    name: str
    recipe: str
    state: LaunchState
    actor: str = Field(description="User who launched it.")
    launched_at: float = Field(description="Unix seconds.")
    final_message: str = Field(description="How it ended; empty while it runs.")
    folder: str
    fleet: bool
    ends_by_itself: bool
    limit_s: float | None
    can_resume: bool
    logs: list[str] = Field(description="Processes that have a log.")


class LaunchList(ResponseModel):
    """Page of launched runs, newest first."""

    items: list[LaunchResponse]
    total: int
    page: int
    pages: int


class LogResponse(ResponseModel):
    """Part of a log."""

    program: str
    text: str
    end: int = Field(description="Offset of the end: `after` of the next request.")


class SettingProblemResponse(ResponseModel):
    """Problem with a setting."""

    key: str = Field(description="Key of the setting; empty for a problem of several.")
    message: str


class MachineCheckResponse(ResponseModel):
    """Check of this machine."""

    name: str = Field(examples=["Memory"])
    is_ok: bool
    message: str = Field(examples=["3.1 GiB free; the processes need at least 1.2 GiB"])


class LaunchPoolResponse(ResponseModel):
    """Pool of the previewed launch."""

    name: str
    provider: str
    kind: str = Field(description="Kind of the provider.", examples=["ec2"])
    is_remote: bool = Field(
        description="Whether its instances are other machines, which must reach this one over the network."
    )
    initial_nodes: int = Field(description="Nodes at the start.")
    min_nodes: int
    max_nodes: int
    usd_per_hour_max: float | None
    usd_per_day_max: float | None
    node_usd_per_hour: float | None = Field(description="US dollars per hour and node; null if unknown.")
    price_source: str = Field(description="Source of the price.", examples=["the provider"])


class ProviderCheckResponse(CheckResponse):
    """Preflight check of a provider."""

    provider: str


class EquivalentRequestResponse(ResponseModel):
    """Equivalent API request."""

    method: Literal["POST"]
    address: str = Field(examples=["/api/v1/launches"])
    body: dict[str, Any] = Field(description="Body, with a placeholder for the reason.", examples=[_EXAMPLE])


class LaunchPreviewResponse(ResponseModel):
    """Preview of a launch."""

    recipe: str = Field(description="Name of the recipe; empty for an earlier run.")
    of: str = Field(description="Name of the earlier run; empty for a recipe.", examples=[""])
    is_ready: bool = Field(description="Whether it can be launched as it is.")
    problem: str = Field(description="Problem other than the settings'; empty without one.")
    problems: list[SettingProblemResponse] = Field(description="Problems with the settings.", examples=[[]])
    checks: list[MachineCheckResponse] = Field(
        description="Checks of this machine: disk, memory, ports. They do not block a launch."
    )
    machines: str = Field(
        description="Where the nodes come from, in one sentence.", examples=["processes on this machine"]
    )
    cost: str = Field(description="Cost of the nodes, in one sentence.", examples=["nothing: no node has a price"])
    pools: list[LaunchPoolResponse] = Field(
        description="Pools with prices; empty if the nodes are processes on this machine."
    )
    usd_per_hour: float = Field(description="Price of the nodes that the run starts without a fleet service.")
    usd_per_hour_max: float | None = Field(description="Budget of the fleet; null for none.")
    usd_per_day_max: float | None
    provider_checks: list[ProviderCheckResponse] = Field(description="Results of the providers' preflight checks.")
    provider_problem: str = Field(
        description="Why the preflight checks could not run; empty if they ran.", examples=[""]
    )
    toml: str = Field(description="Effective recipe.", examples=['name = "smoke"'])
    command: str = Field(
        description="Equivalent command line.", examples=["astraflow run smoke --headless --set stop.steps=200"]
    )
    request: EquivalentRequestResponse = Field(description="Equivalent API request.")
    fleet: bool
    ends_by_itself: bool
    limit_s: float | None
