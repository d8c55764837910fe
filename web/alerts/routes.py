"""`/alerts`: alerts that fire and fired, rules with their form and test, and receivers of notices."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Path, Query, Request
from fastapi.responses import Response
from sqlmodel import Session, col, select
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError, InvalidInput
from web.alerting import history
from web.alerting.delivery import Deliverer
from web.alerting.receivers import ReceiverKind, ReceiverSpec, public_target
from web.alerting.rules import DIAGNOSIS, RuleSpec, spec_from_form
from web.alerting.store import AlertStore
from web.alerts.views import (
    TONES,
    RuleForm,
    TestView,
    alert_row,
    charted_run,
    charted_subject,
    fields_of_spec,
    option_groups,
    run_test_view,
    suggested_fields,
)
from web.components.rendering import PageRenderer
from web.database.tables import MAX_ID, AlertReceiver, RunRecord
from web.live.followed_run import FollowedRuns
from web.requests import responses
from web.requests.commands import Commands
from web.requests.dependencies import AlertsDep, CommandsDep, DelivererDep, FollowedRunsDep, PagesDep, ViewerDep
from web.requests.responses import redirect_with_flash, redirects
from web.security.audit_log import AuditedCommand, Author
from web.security.flash import Flash
from web.security.problems import CODE_HEADER
from web.security.roles import Permission, needs

router = APIRouter()

PAGE = "/alerts"
RECEIVERS = "/alerts#receivers"

LISTED_ALERTS = 100

Number = Annotated[int, Path(ge=1, le=MAX_ID)]
Reason = Annotated[str, Form(max_length=200)]
Text = Annotated[str, Query(max_length=300)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleForms:
    """Forms of rules."""

    pages: PageRenderer
    alerts: AlertStore
    followed: FollowedRuns

    async def new(self, fields: Mapping[str, str], receivers: tuple[str, ...] = ()) -> RuleForm:
        """Returns the form of a new rule with these fields and chosen receivers."""
        listed = await self.alerts.database.read(history.listed_series)
        reports = [run.state.report for run in self.followed.all if run.state.report is not None]
        causes = sorted({problem.cause for report in reports for problem in report.problems if problem.cause})
        return RuleForm(
            action="/alerts/new",
            title="New alert rule",
            fields=fields,
            receivers=receivers,
            groups=option_groups(listed, causes, chosen=fields.get("series", "")),
            all_receivers=tuple(receiver.name for receiver in await self.alerts.receivers()),
            runs=tuple(sorted({run.name for run in self.followed.all} - {""})),
        )

    async def of_rule(self, rule_id: int) -> RuleForm:
        """Returns the form of a rule. Raises: NotFound."""
        rule = await self.alerts.rule(rule_id)
        return replace(
            await self.new(fields_of_spec(rule.spec), rule.spec.receivers),
            action=f"/alerts/rules/{rule_id}",
            title=rule.spec.name,
            rule_id=rule_id,
            is_from_file=rule.is_from_file,
            muted_until=rule.muted_until if rule.muted_until > self.alerts.clock.wall() else 0.0,
        )

    async def save(self, request: Request, by: Author, rule_id: int | None) -> Response:
        """Creates or changes the submitted rule; shows the form with what is wrong otherwise."""
        fields, chosen = await _submitted(request)
        try:
            spec = spec_from_form(fields, chosen)
            await self.alerts.save(spec, rule_id=rule_id, by=by, reason=fields.get("reason", ""))
        except AstraFlowError as problem:
            form = await (self.new(fields) if rule_id is None else self.of_rule(rule_id))
            form = replace(form, fields=fields, receivers=chosen, problem=str(problem), problem_code=problem.code)
            response = self.page(request, form)
            response.headers[CODE_HEADER] = problem.code
            return response
        done = "created" if rule_id is None else "changed"
        return redirect_with_flash(Flash(text=f"alert rule {spec.name} {done}", tone="good"), page=PAGE)

    def page(self, request: Request, form: RuleForm, *, test: TestView | None = None) -> Response:
        """Renders a form, with the result of its test."""
        status = 422 if form.problem else 200
        return self.pages.page(request, "alerts/form.html", page="alerts", status=status, form=form, test=test)


async def get_forms(pages: PagesDep, alerts: AlertsDep, followed: FollowedRunsDep) -> RuleForms:
    """Returns the forms of rules."""
    return RuleForms(pages=pages, alerts=alerts, followed=followed)


RuleFormsDep = Annotated[RuleForms, Depends(get_forms)]


@router.get("/alerts")
@needs(Permission.READ)
async def show(request: Request, pages: PagesDep, alerts: AlertsDep, viewer: ViewerDep) -> Response:
    """Shows alerts, rules and receivers."""
    return pages.page(
        request,
        "alerts/page.html",
        page="alerts",
        is_admin=viewer.may(Permission.ADMINISTER),
        receivers=[(row, public_target(row)) for row in await alerts.receivers()],
        has_mail=alerts.has_mail,
        **await _listed(alerts),
    )


@router.get("/alerts/table")
@needs(Permission.READ)
async def show_table(request: Request, pages: PagesDep, alerts: AlertsDep) -> Response:
    """Returns the alerts and the rules as a fragment, for the live page."""
    return responses.with_etag(request, pages.page(request, "alerts/_tables.html", **await _listed(alerts)))


@router.get("/alerts/new")
@needs(Permission.READ)
async def show_new(
    request: Request,
    forms: RuleFormsDep,
    series: Text = "",
    value: Text = "",
    run: Text = "",
    chart: Text = "",
    policy: Text = "",
) -> Response:
    """Shows the form of a new rule, filled for a series of a run with a limit that its recorded values do not reach.

    series: its subject; empty for a chart, whose values name it. chart: address of the chart, which may name the run.
    """
    database = forms.alerts.database
    run_ids = await database.read(_run_ids)
    run = run or charted_run(chart, run_ids) or (forms.followed.by_name("").name if chart else "")
    series = series or (charted_subject(value, policy) if value else "")
    run_id = run_ids.get(run)
    values = []
    if run_id is not None and value:
        values = await database.read(lambda session: history.recent_values(session, run_id, series, value))
    form = await forms.new(suggested_fields(series, value, run, values))
    hint = f"The threshold is a tenth of the range beyond the values of the last recorded hour of {run}."
    return forms.page(request, replace(form, hint=hint if values else ""))


@router.post("/alerts/new")
@needs(Permission.OPERATE)
async def create(request: Request, forms: RuleFormsDep, viewer: ViewerDep) -> Response:
    """Creates a rule, or shows the form with what is wrong."""
    return await forms.save(request, viewer.author, None)


@router.post("/alerts/test")
@needs(Permission.READ)
async def test_rule(request: Request, forms: RuleFormsDep) -> Response:
    """Evaluates the submitted rule over history and shows when it would have fired. Changes nothing."""
    fields, chosen = await _submitted(request)
    test = await _tested(forms.alerts, lambda: spec_from_form(fields, chosen))
    if request.headers.get("hx-request"):
        return forms.pages.page(request, "alerts/_test.html", test=test)
    return forms.page(request, await forms.new(fields, chosen), test=test)


@router.get("/alerts/rules/{rule_id}")
@needs(Permission.READ)
async def show_rule(request: Request, forms: RuleFormsDep, rule_id: Number) -> Response:
    """Shows the form of a rule with its test over the last hour."""
    form, rule = await forms.of_rule(rule_id), await forms.alerts.rule(rule_id)
    return forms.page(request, form, test=await _tested(forms.alerts, lambda: rule.spec))


@router.post("/alerts/rules/{rule_id}")
@needs(Permission.OPERATE)
async def change(request: Request, forms: RuleFormsDep, viewer: ViewerDep, rule_id: Number) -> Response:
    """Changes a rule, or shows the form with what is wrong."""
    return await forms.save(request, viewer.author, rule_id)


@router.post("/alerts/rules/{rule_id}/mute")
@needs(Permission.OPERATE)
@redirects(PAGE, failed="The rule was not muted")
async def mute(
    alerts: AlertsDep,
    viewer: ViewerDep,
    rule_id: Number,
    minutes: Annotated[float, Form(ge=0, le=1e6)] = 60.0,
    reason: Reason = "",
) -> str:
    """Mutes the notices of a rule for a time; 0 ends it."""
    return await alerts.mute(rule_id, minutes=minutes, by=viewer.author, reason=reason)


@router.get("/alerts/rules/{rule_id}/delete")
@needs(Permission.OPERATE)
async def ask_delete(request: Request, pages: PagesDep, alerts: AlertsDep, rule_id: Number) -> Response:
    """Shows the confirmation page for deleting a rule."""
    return pages.confirm(
        request,
        page="alerts",
        title=f"Delete the rule {(await alerts.rule(rule_id)).spec.name}?",
        sentence="Its alert is resolved without a notice. Past alerts stay in the list.",
        button="Delete rule",
        back=PAGE,
    )


@router.post("/alerts/rules/{rule_id}/delete")
@needs(Permission.OPERATE)
@redirects(PAGE, failed="The rule was not deleted")
async def delete(alerts: AlertsDep, viewer: ViewerDep, rule_id: Number, reason: Reason = "") -> str:
    """Deletes a rule."""
    return await alerts.delete(rule_id, by=viewer.author, reason=reason)


@router.get("/alerts/{alert_id}")
@needs(Permission.READ)
async def show_alert(request: Request, pages: PagesDep, alerts: AlertsDep, alert_id: Number) -> Response:
    """Shows one alert with the link to its chart. Raises: HTTPException for an unknown one."""
    alert = await alerts.alert(alert_id)
    if alert is None:
        raise HTTPException(404, f"Alert {alert_id} does not exist, or is too old.")
    run_ids = await alerts.database.read(_run_ids)
    row = alert_row(alert, run_ids, now=alerts.clock.wall())
    rule = next((rule for rule in await alerts.rules() if rule.id == alert.rule_id), None)
    return pages.page(request, "alerts/alert.html", page="alerts", row=row, alert=alert, rule=rule)


@router.post("/alerts/receivers")
@needs(Permission.ADMINISTER)
@redirects(RECEIVERS, failed="No receiver was added")
async def add_receiver(
    request: Request,
    pages: PagesDep,
    alerts: AlertsDep,
    viewer: ViewerDep,
    name: Annotated[str, Form(max_length=60)] = "",
    kind: Annotated[str, Form(max_length=20)] = "",
    target: Annotated[str, Form(max_length=2000)] = "",
    private: Annotated[str, Form(max_length=10)] = "",
    reason: Reason = "",
) -> str | Response:
    """Adds a receiver and shows the key that signs its notices, which is never shown again."""
    fields = {"name": name.strip(), "kind": kind, "target": target.strip(), "allows_private": private == "yes"}
    spec = ReceiverSpec.parse(fields, where="")
    _, key = await alerts.add_receiver(spec, by=viewer.author, reason=reason)
    if spec.kind is ReceiverKind.MAIL:
        return f"receiver {spec.name} added"
    return pages.page(
        request,
        "settings/secret.html",
        page="alerts",
        title=f"Key of {spec.name}",
        sentence="The receiver checks the header X-AstraFlow-Signature of each notice with this key.",
        secret=key,
        back=RECEIVERS,
    )


@router.post("/alerts/receivers/{receiver_id}/test")
@needs(Permission.ADMINISTER)
@redirects(RECEIVERS, failed="The test did not arrive")
async def test_receiver(alerts: AlertsDep, deliverer: DelivererDep, commands: CommandsDep, receiver_id: Number) -> str:
    """Sends a test notice now."""
    return await tested_receiver(await alerts.receiver(receiver_id), deliverer, commands)


@router.get("/alerts/receivers/{receiver_id}/delete")
@needs(Permission.ADMINISTER)
async def ask_delete_receiver(request: Request, pages: PagesDep, alerts: AlertsDep, receiver_id: Number) -> Response:
    """Shows the confirmation page for deleting a receiver."""
    return pages.confirm(
        request,
        page="alerts",
        title=f"Delete the receiver {(await alerts.receiver(receiver_id)).name}?",
        sentence="Notices that wait for it are dropped.",
        button="Delete",
        back=PAGE,
    )


@router.post("/alerts/receivers/{receiver_id}/delete")
@needs(Permission.ADMINISTER)
@redirects(RECEIVERS, failed="The receiver was not deleted")
async def delete_receiver(alerts: AlertsDep, viewer: ViewerDep, receiver_id: Number, reason: Reason = "") -> str:
    """Deletes a receiver that no rule notifies."""
    return await alerts.delete_receiver(receiver_id, by=viewer.author, reason=reason)


async def tested_receiver(receiver: AlertReceiver, deliverer: Deliverer, commands: Commands) -> str:
    """Sends a test notice and audits it; returns a sentence. Raises: Unavailable, InvalidInput."""
    command = AuditedCommand(action="alert.receiver_test", target=receiver.name)
    return await commands.audited(command, lambda: deliverer.send_test(receiver))


async def run_tests(alerts: AlertStore, spec: RuleSpec) -> tuple[history.RunTest, ...]:
    """Evaluates a rule over history. Raises: InvalidInput for one without recorded history."""
    if spec.kind == DIAGNOSIS:
        raise InvalidInput(
            "cannot test the rule: diagnoses are not recorded; save it, and it is evaluated from now on",
            code="alert.not_recorded",
        )
    return await alerts.database.read(lambda session: history.tested(session, spec))


async def _tested(alerts: AlertStore, read: Callable[[], RuleSpec]) -> TestView:
    try:
        spec = read()
        return run_test_view(await run_tests(alerts, spec), spec)
    except InvalidInput as problem:
        return TestView(sentence="", problem=str(problem))


async def _listed(alerts: AlertStore) -> dict[str, Any]:
    now, run_ids = alerts.clock.wall(), await alerts.database.read(_run_ids)
    rows = [alert_row(alert, run_ids, now=now) for alert in await alerts.alerts(limit=LISTED_ALERTS)]
    firing = [row for row in rows if row.alert.ended_at is None]
    return {
        "firing": firing,
        "past": [row for row in rows if row.alert.ended_at is not None],
        "rules": await alerts.rules(),
        "firing_rules": {row.alert.rule_id for row in firing},
        "tones": TONES,
        "now": now,
    }


async def _submitted(request: Request) -> tuple[dict[str, str], tuple[str, ...]]:
    """Returns the fields of a submitted form and the chosen receivers."""
    form = await request.form()
    fields = {name: value for name, value in form.items() if isinstance(value, str) and name != "receiver"}
    return fields, tuple(value for value in form.getlist("receiver") if isinstance(value, str))


def _run_ids(session: Session) -> dict[str, int]:
    """Returns the newest record of each run, by name."""
    rows = session.execute(select(RunRecord.name, RunRecord.id).order_by(col(RunRecord.id))).all()
    return {name: run_id for name, run_id in rows if run_id is not None}
