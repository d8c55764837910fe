"""`/alerts`: alerts that fire and fired, rules with their form and test, and receivers of notices."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Form, Path, Query, Request
from fastapi.responses import Response
from sqlmodel import Session, col, select
from starlette.exceptions import HTTPException

from astraflow.contract.errors import AstraFlowError, InvalidInput
from web.alerting import history
from web.alerting.delivery import Deliverer
from web.alerting.receivers import ReceiverKind, ReceiverSpec
from web.alerting.rules import DIAGNOSIS, RuleSpec, spec_from_form
from web.alerting.store import AlertStore
from web.alerts.views import (
    CONDITION_LABELS,
    RuleForm,
    TestView,
    alert_row,
    charted_run,
    charted_subject,
    fields_of_spec,
    option_groups,
    receiver_row,
    rule_row,
    run_test_view,
    suggested_fields,
)
from web.components.rendering import PageRenderer
from web.database.tables import MAX_ID, RunRecord
from web.live.followed_run import FollowedRuns
from web.requests import responses
from web.requests.commands import Commands
from web.requests.dependencies import (
    AlertsDep,
    CommandsDep,
    DelivererDep,
    FollowedRunsDep,
    PagesDep,
    ViewerDep,
)
from web.requests.responses import redirect_with_flash, redirect_with_result
from web.security.audit_log import AuditedCommand
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


@router.get("/alerts")
@needs(Permission.READ)
async def show(
    request: Request, pages: PagesDep, alerts: AlertsDep, deliverer: DelivererDep, viewer: ViewerDep
) -> Response:
    """Shows alerts, rules and receivers."""
    receivers = [receiver_row(row) for row in await alerts.receivers()]
    return pages.page(
        request,
        "alerts/page.html",
        page="alerts",
        is_admin=viewer.may(Permission.ADMINISTER),
        receivers=receivers,
        has_mail=deliverer.has_mail,
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
    pages: PagesDep,
    alerts: AlertsDep,
    followed: FollowedRunsDep,
    series: Text = "",
    value: Text = "",
    run: Text = "",
    chart: Text = "",
    policy: Text = "",
) -> Response:
    """Shows the form of a new rule, filled for a series of a run with a limit that its recorded values do not reach.

    series: its subject; empty for a chart, whose values name it. chart: address of the chart, which may name the run.
    """
    run_ids = await alerts.database.read(_run_ids)
    run = run or charted_run(chart, run_ids) or (followed.by_name("").name if chart else "")
    series = series or (charted_subject(value, policy) if value else "")
    run_id = run_ids.get(run)
    values = []
    if run_id is not None and value:
        values = await alerts.database.read(lambda session: history.recent_values(session, run_id, series, value))
    form = await _form(alerts, followed, fields=suggested_fields(series, value, run, values))
    hint = f"The threshold is a tenth of the range beyond the values of the last recorded hour of {run}."
    return _form_page(request, pages, replace(form, hint=hint if values else ""))


@router.post("/alerts/new")
@needs(Permission.OPERATE)
async def create(
    request: Request, pages: PagesDep, alerts: AlertsDep, followed: FollowedRunsDep, viewer: ViewerDep
) -> Response:
    """Creates a rule, or shows the form with what is wrong."""
    fields, chosen = await _submitted(request)
    try:
        spec = spec_from_form(fields, chosen)
        await alerts.create(spec, by=viewer.author, reason=fields.get("reason", ""))
    except AstraFlowError as problem:
        form = await _form(alerts, followed, fields=fields, receivers=chosen)
        return _failed_form(request, pages, form, problem)
    return redirect_with_flash(Flash(text=f"alert rule {spec.name} created", tone="good"), page=PAGE)


@router.post("/alerts/test")
@needs(Permission.READ)
async def test_rule(request: Request, pages: PagesDep, alerts: AlertsDep, followed: FollowedRunsDep) -> Response:
    """Evaluates the submitted rule over history and shows when it would have fired. Changes nothing."""
    fields, chosen = await _submitted(request)
    try:
        view = await _tested(alerts, spec_from_form(fields, chosen))
    except AstraFlowError as problem:
        view = TestView(sentence="", problem=str(problem))
    if request.headers.get("hx-request"):
        return pages.page(request, "alerts/_test.html", test=view)
    form = await _form(alerts, followed, fields=fields, receivers=chosen)
    return _form_page(request, pages, form, test=view)


@router.get("/alerts/rules/{rule_id}")
@needs(Permission.READ)
async def show_rule(
    request: Request, pages: PagesDep, alerts: AlertsDep, followed: FollowedRunsDep, rule_id: Number
) -> Response:
    """Shows the form of a rule with its test over the last hour."""
    form = await _rule_form(alerts, followed, rule_id)
    rule = await alerts.rule(rule_id)
    return _form_page(request, pages, form, test=await _tested(alerts, rule.spec))


@router.post("/alerts/rules/{rule_id}")
@needs(Permission.OPERATE)
async def change(
    request: Request,
    pages: PagesDep,
    alerts: AlertsDep,
    followed: FollowedRunsDep,
    viewer: ViewerDep,
    rule_id: Number,
) -> Response:
    """Changes a rule, or shows the form with what is wrong."""
    fields, chosen = await _submitted(request)
    try:
        spec = spec_from_form(fields, chosen)
        await alerts.change(rule_id, spec, by=viewer.author, reason=fields.get("reason", ""))
    except AstraFlowError as problem:
        form = await _rule_form(alerts, followed, rule_id)
        return _failed_form(request, pages, replace(form, fields=fields, receivers=chosen), problem)
    return redirect_with_flash(Flash(text=f"alert rule {spec.name} changed", tone="good"), page=PAGE)


@router.post("/alerts/rules/{rule_id}/mute")
@needs(Permission.OPERATE)
async def mute(
    alerts: AlertsDep,
    viewer: ViewerDep,
    rule_id: Number,
    minutes: Annotated[float, Form(ge=0, le=1e6)] = 60.0,
    reason: Reason = "",
) -> Response:
    """Mutes the notices of a rule for a time; 0 ends it."""
    command = alerts.mute(rule_id, minutes=minutes, by=viewer.author, reason=reason)
    return await redirect_with_result(command, failed="The rule was not muted", page=PAGE)


@router.get("/alerts/rules/{rule_id}/delete")
@needs(Permission.OPERATE)
async def ask_delete(request: Request, pages: PagesDep, alerts: AlertsDep, rule_id: Number) -> Response:
    """Shows the confirmation page for deleting a rule."""
    rule = await alerts.rule(rule_id)
    sentence = "Its alert is resolved without a notice. Past alerts stay in the list."
    return _ask(request, pages, title=f"Delete the rule {rule.spec.name}?", sentence=sentence, button="Delete rule")


@router.post("/alerts/rules/{rule_id}/delete")
@needs(Permission.OPERATE)
async def delete(alerts: AlertsDep, viewer: ViewerDep, rule_id: Number, reason: Reason = "") -> Response:
    """Deletes a rule."""

    async def command() -> str:
        return f"alert rule {await alerts.delete(rule_id, by=viewer.author, reason=reason)} deleted"

    return await redirect_with_result(command(), failed="The rule was not deleted", page=PAGE)


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
async def add_receiver(
    request: Request,
    pages: PagesDep,
    alerts: AlertsDep,
    deliverer: DelivererDep,
    viewer: ViewerDep,
    name: Annotated[str, Form(max_length=60)] = "",
    kind: Annotated[str, Form(max_length=20)] = "",
    target: Annotated[str, Form(max_length=2000)] = "",
    private: Annotated[str, Form(max_length=10)] = "",
    reason: Reason = "",
) -> Response:
    """Adds a receiver and shows the key that signs its notices, which is never shown again."""
    try:
        fields = {"name": name.strip(), "kind": kind, "target": target, "allows_private": private == "yes"}
        spec = receiver_spec(fields, has_mail=deliverer.has_mail)
        _, key = await alerts.add_receiver(spec, by=viewer.author, reason=reason)
    except AstraFlowError as problem:
        return redirect_with_flash(Flash.failure("No receiver was added", problem), page=RECEIVERS)
    if spec.kind is ReceiverKind.MAIL:
        return redirect_with_flash(Flash(text=f"receiver {spec.name} added", tone="good"), page=RECEIVERS)
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
async def test_receiver(
    alerts: AlertsDep, deliverer: DelivererDep, commands: CommandsDep, receiver_id: Number
) -> Response:
    """Sends a test notice now."""
    command = tested_receiver(alerts, deliverer, commands, receiver_id)
    return await redirect_with_result(command, failed="The test did not arrive", page=RECEIVERS)


@router.get("/alerts/receivers/{receiver_id}/delete")
@needs(Permission.ADMINISTER)
async def ask_delete_receiver(request: Request, pages: PagesDep, alerts: AlertsDep, receiver_id: Number) -> Response:
    """Shows the confirmation page for deleting a receiver."""
    receiver = await alerts.receiver(receiver_id)
    sentence = "Notices that wait for it are dropped."
    return _ask(request, pages, title=f"Delete the receiver {receiver.name}?", sentence=sentence, button="Delete")


@router.post("/alerts/receivers/{receiver_id}/delete")
@needs(Permission.ADMINISTER)
async def delete_receiver(alerts: AlertsDep, viewer: ViewerDep, receiver_id: Number, reason: Reason = "") -> Response:
    """Deletes a receiver that no rule notifies."""

    async def command() -> str:
        return f"receiver {await alerts.delete_receiver(receiver_id, by=viewer.author, reason=reason)} deleted"

    return await redirect_with_result(command(), failed="The receiver was not deleted", page=RECEIVERS)


def receiver_spec(fields: Mapping[str, object], *, has_mail: bool) -> ReceiverSpec:
    """Builds a receiver. has_mail: whether a mail server is configured. Raises: InvalidInput."""
    spec = ReceiverSpec.parse(fields, where="")
    if spec.kind is ReceiverKind.MAIL and not has_mail:
        raise InvalidInput(
            "cannot add a receiver of mail: the page has no mail server; start it with --mail FILE",
            code="alert.no_mail_server",
        )
    return spec


async def tested_receiver(alerts: AlertStore, deliverer: Deliverer, commands: Commands, receiver_id: int) -> str:
    """Sends a test notice and audits it; returns a sentence. Raises: Conflict, Unavailable, InvalidInput."""
    receiver = await alerts.receiver(receiver_id)
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


async def _tested(alerts: AlertStore, spec: RuleSpec) -> TestView:
    try:
        return run_test_view(await run_tests(alerts, spec), spec)
    except InvalidInput as problem:
        return TestView(sentence="", problem=str(problem))


async def _listed(alerts: AlertStore) -> dict[str, Any]:
    now, run_ids = alerts.clock.wall(), await alerts.database.read(_run_ids)
    rows = [alert_row(alert, run_ids, now=now) for alert in await alerts.alerts(limit=LISTED_ALERTS)]
    firing = [row for row in rows if row.ended_at is None]
    counts = Counter(row.rule_id for row in firing)
    return {
        "firing": firing,
        "past": [row for row in rows if row.ended_at is not None],
        "rules": [rule_row(rule, counts, now=now) for rule in await alerts.rules()],
    }


async def _submitted(request: Request) -> tuple[dict[str, str], tuple[str, ...]]:
    """Returns the fields of a submitted form and the chosen receivers."""
    form = await request.form()
    fields = {name: value for name, value in form.items() if isinstance(value, str) and name != "receiver"}
    return fields, tuple(value for value in form.getlist("receiver") if isinstance(value, str))


async def _form(
    alerts: AlertStore, followed: FollowedRuns, *, fields: Mapping[str, str], receivers: tuple[str, ...] = ()
) -> RuleForm:
    listed = await alerts.database.read(history.listed_series)
    reports = [run.state.report for run in followed.all if run.state.report is not None]
    causes = sorted({problem.cause for report in reports for problem in report.problems if problem.cause})
    return RuleForm(
        action="/alerts/new",
        title="New alert rule",
        fields=fields,
        receivers=receivers,
        groups=option_groups(listed, causes, chosen=fields.get("series", "")),
        conditions=tuple((condition.value, label) for condition, label in CONDITION_LABELS.items()),
        all_receivers=tuple(receiver.name for receiver in await alerts.receivers()),
        runs=tuple(sorted({run.name for run in followed.all} - {""})),
    )


async def _rule_form(alerts: AlertStore, followed: FollowedRuns, rule_id: int) -> RuleForm:
    rule = await alerts.rule(rule_id)
    form = await _form(alerts, followed, fields=fields_of_spec(rule.spec), receivers=rule.spec.receivers)
    return replace(
        form,
        action=f"/alerts/rules/{rule_id}",
        title=rule.spec.name,
        rule_id=rule_id,
        is_from_file=rule.is_from_file,
        muted_until=rule.muted_until if rule.muted_until > alerts.clock.wall() else 0.0,
    )


def _form_page(request: Request, pages: PageRenderer, form: RuleForm, *, test: TestView | None = None) -> Response:
    status = 422 if form.problem else 200
    return pages.page(request, "alerts/form.html", page="alerts", status=status, form=form, test=test)


def _failed_form(request: Request, pages: PageRenderer, form: RuleForm, problem: AstraFlowError) -> Response:
    response = _form_page(request, pages, replace(form, problem=str(problem), problem_code=problem.code))
    response.headers[CODE_HEADER] = problem.code
    return response


def _ask(request: Request, pages: PageRenderer, *, title: str, sentence: str, button: str) -> Response:
    return pages.page(
        request,
        "confirm.html",
        page="alerts",
        title=title,
        sentence=sentence,
        action=request.url.path,
        button=button,
        back=PAGE,
        tone="bad",
    )


def _run_ids(session: Session) -> dict[str, int]:
    """Returns the newest record of each run, by name."""
    rows = session.execute(select(RunRecord.name, RunRecord.id).order_by(col(RunRecord.id))).all()
    return {name: run_id for name, run_id in rows if run_id is not None}
