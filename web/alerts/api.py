"""`/api/v1/alerts`: alerts, rules with their test, and receivers."""

from collections.abc import Awaitable
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Path, Query
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from astraflow.contract.errors import Conflict, InvalidInput, Unavailable
from astraflow.contract.record_kinds import Severity
from web.alerting.history import Firing, RunTest
from web.alerting.receivers import ReceiverKind, public_target
from web.alerting.rules import Condition, RuleSpec, Unit
from web.alerting.store import AlertStore, Rule
from web.alerts import routes as page
from web.database.tables import MAX_ID, Alert, AlertReceiver
from web.requests.dependencies import AlertsDep, CommandsDep, DelivererDep, ViewerDep
from web.rest.common import (
    BODY_ERRORS,
    NAME,
    PREFIX,
    ItemList,
    Key,
    Limit,
    MessageResponse,
    Reason,
    ReasonRequest,
    RequestBody,
    ResponseModel,
    error_responses,
)
from web.rest.contract_models import fields_of
from web.security.roles import Permission, needs

T = TypeVar("T")

router = APIRouter(prefix=f"{PREFIX}/alerts", tags=["alerts"])

RuleNumber = Annotated[int, Path(ge=1, le=MAX_ID, description="Id of the rule.", examples=[1])]
ReceiverNumber = Annotated[int, Path(ge=1, le=MAX_ID, description="Id of the receiver.", examples=[1])]
RunName = Annotated[str, Query(max_length=200, description="Name of a run; empty for all.", examples=["reverse-0001"])]
_PRINTABLE = r"^[!-~]([ -~]*[!-~])?$"
_EXAMPLE: dict[str, Any] = {
    "name": "Entropy low",
    "run": "*",
    "series": "training/solver",
    "value": "entropy",
    "condition": "below",
    "threshold": 0.1,
    "hold": 5,
    "unit": "steps",
    "severity": "critical",
    "receivers": ["oncall"],
}


@fields_of(Alert)
class AlertResponse(ResponseModel):
    """Alert that fires or has fired."""


class AlertList(ItemList[AlertResponse]):
    """Alerts that fire, then resolved ones, newest first."""


@fields_of(RuleSpec)
class RuleResponse(ResponseModel):
    """Rule of an alert."""

    id: int = Field(description="Id of the rule.")
    changed_at: float = Field(description="Time of its latest change. Unix seconds.")
    muted_until: float = Field(description="Time until which its notices are not sent; 0 for none. Unix seconds.")
    created_by: str = Field(description="Name of the user; empty for a rule of the file.")
    is_from_file: bool = Field(description="Whether it is from the file of alerts, which the API does not change.")


class RuleList(ItemList[RuleResponse]):
    """All rules, by name."""


class RuleTestRequest(RequestBody):
    """Rule, as it would be created."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    name: str = Field(min_length=1, max_length=80, pattern=_PRINTABLE, description="Unique name.")
    run: str = Field("*", max_length=200, pattern=_PRINTABLE, description="Name of a run, or a pattern with * and ?.")
    series: str = Field(
        max_length=240,
        pattern=r"^[a-z_]{1,40}(/[!-~]{1,190})?$",
        description="Subject of the series, such as training/solver, policy/*, node/gpu-* or fleet; or event, problem "
        "or diagnosis.",
    )
    value: str = Field(
        pattern=r"^([A-Za-z0-9_.-]{1,120}|\*)$",
        description="Value of the series, such as entropy; or the kind of the record, * for any.",
    )
    condition: Condition = Field(strict=False, description="Condition of the value.")
    threshold: float | None = Field(
        None, ge=-1e300, le=1e300, description="Limit of the value, or of its change; null for others."
    )
    window: float = Field(300.0, gt=0, le=6e5, description="Time over which a change is measured. Seconds or steps.")
    hold: float = Field(
        0.0, ge=0, le=6e5, description="Time for which the condition must hold before it fires. Seconds or steps."
    )
    unit: Unit = Field(Unit.SECONDS, strict=False, description="Unit of both; steps for training metrics only.")
    severity: Severity = Field(Severity.WARNING, strict=False, description="Urgency for a person.")
    receivers: list[Annotated[str, Field(pattern=NAME)]] = Field(
        [], max_length=10, description="Names of the receivers that are notified."
    )

    @property
    def spec(self) -> RuleSpec:
        """The rule. Raises: Conflict for fields that do not belong together."""
        try:
            return RuleSpec.parse(self.model_dump(mode="json", exclude={"reason"}), where="")
        except InvalidInput as problem:
            raise Conflict(str(problem), code="alert.inconsistent_rule") from problem


class RuleRequest(RuleTestRequest):
    """Rule with the reason for the change."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE | {"reason": "collapsed last week"}]})

    reason: Reason


class MuteRequest(RequestBody):
    """Time for which notices are muted."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"minutes": 60, "reason": "known, fix is on the way"}]})

    minutes: float = Field(ge=0, le=43_200, description="Minutes; 0 ends it.")
    reason: Reason


@fields_of(Firing)
class FiringResponse(ResponseModel):
    """Alert that would have fired."""


@fields_of(RunTest, without=("firings",))
class RunTestResponse(ResponseModel):
    """Result of a rule on one run."""

    firings: list[FiringResponse] = Field(description="Alerts that would have fired, oldest first.")


class RuleTestResponse(ItemList[RunTestResponse]):
    """Results of a rule over the last recorded hour of each run that it covers."""


class ReceiverRequest(RequestBody):
    """Receiver of notices."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "oncall",
                    "kind": "webhook",
                    "target": "https://hooks.example.org/services/T0/B0",
                    "reason": "the channel of the team",
                }
            ]
        }
    )

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$", description="Unique name.")
    kind: Literal["webhook", "mail"] = Field(description="Kind of the receiver.")
    target: str = Field(
        max_length=2000,
        pattern=r"^[!-~]+$",
        description="https:// URL, which is never shown again; or addresses of mail, separated by commas.",
    )
    allows_private: bool = Field(False, description="Whether the URL may lead to this machine or a private network.")
    reason: Reason


class ReceiverResponse(ResponseModel):
    """Receiver of notices, without its secrets."""

    id: int = Field(description="Id of the receiver.")
    name: str = Field(description="Unique name.")
    kind: ReceiverKind = Field(description="Kind of the receiver.")
    target: str = Field(description="Addresses of mail; of a URL only scheme, host and port.")
    allows_private: bool = Field(description="Whether the URL may lead to this machine or a private network.")
    created_by: str = Field(description="Name of the user.")
    sent_at: float = Field(description="Time of the latest notice that arrived; 0 for none. Unix seconds.")
    problem: str = Field(description="Cause why the latest notice did not arrive; empty if it did.")


class ReceiverList(ItemList[ReceiverResponse]):
    """All receivers, by name."""


class AddedReceiverResponse(ResponseModel):
    """Added receiver with the key of its signatures."""

    receiver: ReceiverResponse = Field(description="The receiver, as in the list.")
    secret: str | None = Field(
        description="Key of the header X-AstraFlow-Signature. Present in the first response only; null when the same "
        "key is repeated."
    )


class ReceiverTestResponse(ResponseModel):
    """Result of a test notice."""

    has_arrived: bool = Field(description="Whether the receiver took the notice.")
    message: str = Field(description="Result, in a sentence.")
    code: str = Field(description="Code of the failure; empty for a notice that arrived.")


@router.get("", response_model=AlertList, responses=error_responses())
@needs(Permission.READ)
async def alerts(alerts: AlertsDep, of_run: RunName = "", limit: Limit = 100) -> dict[str, Any]:
    """Lists alerts: those that fire first, then resolved ones, newest first."""
    return {"items": await alerts.alerts(run=of_run, limit=limit)}


@router.get("/rules", response_model=RuleList, responses=error_responses())
@needs(Permission.READ)
async def rules(alerts: AlertsDep) -> dict[str, Any]:
    """Lists the rules."""
    return {"items": [_rule(rule) for rule in await alerts.rules()]}


@router.post("/rules", status_code=201, response_model=RuleResponse, responses=error_responses(*BODY_ERRORS))
@needs(Permission.OPERATE)
async def create_rule(
    commands: CommandsDep, alerts: AlertsDep, viewer: ViewerDep, body: RuleRequest, key: Key
) -> dict[str, Any]:
    """Creates a rule.

    Returns 409 for a name that exists, an unknown receiver, and fields that do not belong together.
    """
    spec = body.spec

    async def command() -> str:
        return str(await _consistent(alerts.create(spec, by=viewer.author, reason=body.reason)))

    rule_id = await commands.once(command, key=key, request=["alert rule", body])
    return _rule(await alerts.rule(int(rule_id)))


@router.post("/rule-test", response_model=RuleTestResponse, responses=error_responses(*BODY_ERRORS))
@needs(Permission.READ)
async def test_rule(alerts: AlertsDep, body: RuleTestRequest) -> dict[str, Any]:
    """Evaluates a rule over the last recorded hour of each run that it covers. Changes nothing."""
    return {"items": await _consistent(page.run_tests(alerts, body.spec))}


@router.put("/rules/{rule_id}", response_model=RuleResponse, responses=error_responses(404, *BODY_ERRORS))
@needs(Permission.OPERATE)
async def change_rule(
    commands: CommandsDep, alerts: AlertsDep, viewer: ViewerDep, rule_id: RuleNumber, body: RuleRequest, key: Key
) -> dict[str, Any]:
    """Replaces a rule. Its alert is resolved, and it is evaluated from now on. Returns 409 as for a new rule."""
    await _require_rule(alerts, rule_id)
    spec = body.spec

    async def command() -> str:
        await _consistent(alerts.change(rule_id, spec, by=viewer.author, reason=body.reason))
        return ""

    await commands.once(command, key=key, request=["alert rule", rule_id, body])
    return _rule(await alerts.rule(rule_id))


@router.post("/rules/{rule_id}/mute", response_model=MessageResponse, responses=error_responses(404, *BODY_ERRORS))
@needs(Permission.OPERATE)
async def mute_rule(
    commands: CommandsDep, alerts: AlertsDep, viewer: ViewerDep, rule_id: RuleNumber, body: MuteRequest, key: Key
) -> dict[str, Any]:
    """Mutes the notices of a rule for a time; the page shows its alerts all the same."""
    await _require_rule(alerts, rule_id)

    async def command() -> str:
        return await alerts.mute(rule_id, minutes=body.minutes, by=viewer.author, reason=body.reason)

    return {"message": await commands.once(command, key=key, request=["alert mute", rule_id, body])}


@router.post("/rules/{rule_id}/delete", response_model=MessageResponse, responses=error_responses(404, *BODY_ERRORS))
@needs(Permission.OPERATE)
async def delete_rule(
    commands: CommandsDep, alerts: AlertsDep, viewer: ViewerDep, rule_id: RuleNumber, body: ReasonRequest, key: Key
) -> dict[str, Any]:
    """Deletes a rule. Its alert is resolved without a notice; past alerts stay."""

    async def command() -> str:
        await _require_rule(alerts, rule_id)
        return f"alert rule {await alerts.delete(rule_id, by=viewer.author, reason=body.reason)} deleted"

    return {"message": await commands.once(command, key=key, request=["alert delete", rule_id, body.reason])}


@router.get("/receivers", response_model=ReceiverList, responses=error_responses())
@needs(Permission.READ)
async def receivers(alerts: AlertsDep) -> dict[str, Any]:
    """Lists the receivers, without their secrets."""
    return {"items": [_receiver(row) for row in await alerts.receivers()]}


@router.post(
    "/receivers", status_code=201, response_model=AddedReceiverResponse, responses=error_responses(*BODY_ERRORS)
)
@needs(Permission.ADMINISTER)
async def add_receiver(
    commands: CommandsDep,
    alerts: AlertsDep,
    deliverer: DelivererDep,
    viewer: ViewerDep,
    body: ReceiverRequest,
    key: Key,
) -> dict[str, Any]:
    """Adds a receiver. This response is the only one with the key of its signatures.

    Returns 409 for a name that exists, an unusable target, and for mail without a mail server.
    """
    secret = ""

    async def command() -> str:
        nonlocal secret
        try:
            spec = page.receiver_spec(body.model_dump(exclude={"reason"}), has_mail=deliverer.has_mail)
        except InvalidInput as problem:
            raise Conflict(str(problem), code=problem.code) from problem
        number, secret = await alerts.add_receiver(spec, by=viewer.author, reason=body.reason)
        return str(number)

    number = await commands.once(command, key=key, request=["alert receiver", body])
    return {"receiver": _receiver(await alerts.receiver(int(number))), "secret": secret or None}


@router.post(
    "/receivers/{receiver_id}/test", response_model=ReceiverTestResponse, responses=error_responses(404, *BODY_ERRORS)
)
@needs(Permission.ADMINISTER)
async def test_receiver(
    commands: CommandsDep, alerts: AlertsDep, deliverer: DelivererDep, receiver_id: ReceiverNumber
) -> dict[str, Any]:
    """Sends a test notice now. A notice that does not arrive is a normal response: check `has_arrived`."""
    await _require_receiver(alerts, receiver_id)
    try:
        message = await page.tested_receiver(alerts, deliverer, commands, receiver_id)
    except (InvalidInput, Unavailable) as problem:
        return {"has_arrived": False, "message": str(problem), "code": problem.code}
    return {"has_arrived": True, "message": message, "code": ""}


@router.post(
    "/receivers/{receiver_id}/delete", response_model=MessageResponse, responses=error_responses(404, *BODY_ERRORS)
)
@needs(Permission.ADMINISTER)
async def delete_receiver(
    commands: CommandsDep,
    alerts: AlertsDep,
    viewer: ViewerDep,
    receiver_id: ReceiverNumber,
    body: ReasonRequest,
    key: Key,
) -> dict[str, Any]:
    """Deletes a receiver with its waiting notices. Returns 409 while a rule notifies it."""

    async def command() -> str:
        await _require_receiver(alerts, receiver_id)
        return f"receiver {await alerts.delete_receiver(receiver_id, by=viewer.author, reason=body.reason)} deleted"

    return {"message": await commands.once(command, key=key, request=["receiver delete", receiver_id, body.reason])}


async def _consistent(command: Awaitable[T]) -> T:
    """Awaits a command on a valid request; what it refuses is a conflict with the rules and receivers that exist."""
    try:
        return await command
    except InvalidInput as problem:
        raise Conflict(str(problem), code=problem.code) from problem


async def _require_rule(alerts: AlertStore, rule_id: int) -> None:
    try:
        await alerts.rule(rule_id)
    except Conflict as problem:
        raise HTTPException(404, str(problem)) from problem


async def _require_receiver(alerts: AlertStore, receiver_id: int) -> None:
    try:
        await alerts.receiver(receiver_id)
    except Conflict as problem:
        raise HTTPException(404, str(problem)) from problem


def _rule(rule: Rule) -> dict[str, Any]:
    own = ("id", "changed_at", "muted_until", "created_by", "is_from_file")
    return {**rule.spec.model_dump(), **{name: getattr(rule, name) for name in own}}


def _receiver(row: AlertReceiver) -> dict[str, Any]:
    return ReceiverResponse.values_of(row, target=public_target(row))
