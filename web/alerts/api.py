"""`/api/v1/alerts`: alerts, rules with their test, and receivers."""

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import ConfigDict, Field

from astraflow.contract.errors import InvalidInput, Unavailable
from web.alerting.history import Firing, RunTest
from web.alerting.receivers import ReceiverFields, ReceiverSpec, public_target
from web.alerting.rules import RuleFields, RuleSpec
from web.alerting.store import Rule
from web.alerts.routes import run_tests, tested_receiver
from web.database.tables import MAX_ID, Alert, AlertReceiver
from web.requests.dependencies import AlertsDep, CommandsDep, DelivererDep
from web.rest.changes import ChangeDep
from web.rest.common import (
    ApiRouter,
    ItemList,
    Limit,
    MessageResponse,
    Reason,
    ReasonRequest,
    RequestBody,
    ResponseModel,
)
from web.rest.contract_models import fields_of
from web.security.roles import Permission, needs

router = ApiRouter("/alerts", tags=["alerts"])

RuleNumber = Annotated[int, Path(ge=1, le=MAX_ID, description="Id of the rule.", examples=[1])]
ReceiverNumber = Annotated[int, Path(ge=1, le=MAX_ID, description="Id of the receiver.", examples=[1])]
RunName = Annotated[str, Query(max_length=200, description="Name of a run; empty for all.", examples=["reverse-0001"])]
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


class RuleTestRequest(RuleFields, RequestBody):
    """Rule, as it would be created."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    @property
    def spec(self) -> RuleSpec:
        """The rule. Raises: InvalidInput for fields that do not belong together."""
        return RuleSpec.parse(self.model_dump(mode="json", exclude={"reason"}), where="")


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


class ReceiverRequest(ReceiverFields, RequestBody):
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

    reason: Reason


@fields_of(AlertReceiver, without=("salt", "created_at"))
class ReceiverResponse(ResponseModel):
    """Receiver of notices, without its secrets."""

    id: int = Field(description="Id of the receiver.")
    target: str = Field(description="Addresses of mail; of a URL only scheme, host and port.")


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


@router.get("", response_model=AlertList)
@needs(Permission.READ)
async def alerts(alerts: AlertsDep, of_run: RunName = "", limit: Limit = 100) -> dict[str, Any]:
    """Lists alerts: those that fire first, then resolved ones, newest first."""
    return {"items": await alerts.alerts(run=of_run, limit=limit)}


@router.get("/rules", response_model=RuleList)
@needs(Permission.READ)
async def rules(alerts: AlertsDep) -> dict[str, Any]:
    """Lists the rules."""
    return {"items": [_rule(rule) for rule in await alerts.rules()]}


@router.post("/rules", status_code=201, response_model=RuleResponse)
@needs(Permission.OPERATE)
async def create_rule(change: ChangeDep, alerts: AlertsDep, body: RuleRequest) -> dict[str, Any]:
    """Creates a rule.

    Returns 409 for a name that exists, an unknown receiver, and fields that do not belong together.
    """
    rule_id = await change.once(lambda: alerts.save(body.spec, by=change.by, reason=body.reason))
    return _rule(await alerts.rule(int(rule_id)))


@router.post("/rule-test", response_model=RuleTestResponse)
@needs(Permission.READ)
async def test_rule(alerts: AlertsDep, body: RuleTestRequest) -> dict[str, Any]:
    """Evaluates a rule over the last recorded hour of each run that it covers. Changes nothing."""
    return {"items": await run_tests(alerts, body.spec)}


@router.put("/rules/{rule_id}", response_model=RuleResponse)
@needs(Permission.OPERATE)
async def change_rule(change: ChangeDep, alerts: AlertsDep, rule_id: RuleNumber, body: RuleRequest) -> dict[str, Any]:
    """Replaces a rule. Its alert is resolved, and it is evaluated from now on. Returns 409 as for a new rule."""
    await change.once(lambda: alerts.save(body.spec, rule_id=rule_id, by=change.by, reason=body.reason))
    return _rule(await alerts.rule(rule_id))


@router.post("/rules/{rule_id}/mute", response_model=MessageResponse)
@needs(Permission.OPERATE)
async def mute_rule(change: ChangeDep, alerts: AlertsDep, rule_id: RuleNumber, body: MuteRequest) -> dict[str, str]:
    """Mutes the notices of a rule for a time; the page shows its alerts all the same."""
    return await change.message(lambda: alerts.mute(rule_id, minutes=body.minutes, by=change.by, reason=body.reason))


@router.post("/rules/{rule_id}/delete", response_model=MessageResponse)
@needs(Permission.OPERATE)
async def delete_rule(change: ChangeDep, alerts: AlertsDep, rule_id: RuleNumber, body: ReasonRequest) -> dict[str, str]:
    """Deletes a rule. Its alert is resolved without a notice; past alerts stay."""
    return await change.message(lambda: alerts.delete(rule_id, by=change.by, reason=body.reason))


@router.get("/receivers", response_model=ReceiverList)
@needs(Permission.READ)
async def receivers(alerts: AlertsDep) -> dict[str, Any]:
    """Lists the receivers, without their secrets."""
    return {"items": [_receiver(row) for row in await alerts.receivers()]}


@router.post("/receivers", status_code=201, response_model=AddedReceiverResponse)
@needs(Permission.ADMINISTER)
async def add_receiver(change: ChangeDep, alerts: AlertsDep, body: ReceiverRequest) -> dict[str, Any]:
    """Adds a receiver. This response is the only one with the key of its signatures.

    Returns 409 for a name that exists, an unusable target, and for mail without a mail server.
    """

    async def add() -> tuple[int, str]:
        spec = ReceiverSpec.parse(body.model_dump(mode="json", exclude={"reason"}), where="")
        return await alerts.add_receiver(spec, by=change.by, reason=body.reason)

    number, secret = await change.once_with_secret(add)
    return {"receiver": _receiver(await alerts.receiver(int(number))), "secret": secret}


@router.post("/receivers/{receiver_id}/test", response_model=ReceiverTestResponse)
@needs(Permission.ADMINISTER)
async def test_receiver(
    commands: CommandsDep, alerts: AlertsDep, deliverer: DelivererDep, receiver_id: ReceiverNumber
) -> dict[str, Any]:
    """Sends a test notice now. A notice that does not arrive is a normal response: check `has_arrived`."""
    receiver = await alerts.receiver(receiver_id)
    try:
        message = await tested_receiver(receiver, deliverer, commands)
    except (InvalidInput, Unavailable) as problem:
        return {"has_arrived": False, "message": str(problem), "code": problem.code}
    return {"has_arrived": True, "message": message, "code": ""}


@router.post("/receivers/{receiver_id}/delete", response_model=MessageResponse)
@needs(Permission.ADMINISTER)
async def delete_receiver(
    change: ChangeDep, alerts: AlertsDep, receiver_id: ReceiverNumber, body: ReasonRequest
) -> dict[str, str]:
    """Deletes a receiver with its waiting notices. Returns 409 while a rule notifies it."""
    return await change.message(lambda: alerts.delete_receiver(receiver_id, by=change.by, reason=body.reason))


def _rule(rule: Rule) -> dict[str, Any]:
    own = ("id", "changed_at", "muted_until", "created_by", "is_from_file")
    return {**rule.spec.model_dump(), **{name: getattr(rule, name) for name in own}}


def _receiver(row: AlertReceiver) -> dict[str, Any]:
    return ReceiverResponse.values_of(row, target=public_target(row))
