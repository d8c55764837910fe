"""Evaluates the rules of alerts on all followed runs, and stores and queues what begins and ends."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError
from sqlmodel import Session, col, select

from astraflow.contract.errors import Unavailable
from astraflow.contract.fleet.pools import FleetStatus
from astraflow.contract.reports.report import Report
from astraflow.contract.reports.training_steps import TrainingStep
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from astraflow.runtime.retries import periodic
from web.alerting.delivery import enqueue
from web.alerting.evaluation import RuleWatch
from web.alerting.notices import FIRING, RESOLVED
from web.alerting.rules import EVENT, Condition
from web.alerting.run_watch import RunWatch
from web.alerting.store import AlertStore, Rule, prune_alerts
from web.components import formats
from web.database.tables import Alert
from web.history.samples import Sample

log = get_logger()

TICK_S = 1.0
SILENCE_S = 2.5
"""Time without a report after which the time itself is evaluated, seconds."""

UNFOLLOWED_S = 60.0
"""Time after the start within which a run must be followed again, before its alerts are resolved. Seconds."""

NORMAL, ENDED, CHANGED = "the condition no longer holds", "the run is no longer followed", "the rule changed"

Key = tuple[int, str]
"""Id of a rule and name of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """Alert that begins or ends."""

    key: Key
    rule: Rule | None
    """None when it was deleted."""
    began: Alert | None = None
    """Alert to store, for one that begins."""
    because: str = ""
    """Why it ends; empty for one that begins, or that is only queued."""


class AlertEngine:
    """Evaluation of all rules. `observe` is called with each report; a task stores the changes each second."""

    def __init__(self, store: AlertStore, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._rules: dict[int, Rule] = {}
        self._rules_version = -1
        self._runs: dict[str, RunWatch] = {}
        self._observed_at: dict[str, float] = {}
        """Time at which the latest report of a run arrived, on the clock's `now`."""
        self._open: dict[Key, Alert] = {}
        """Stored alerts that fire."""
        self._evaluated_until: dict[Key, float] = {}
        """End of the latest alert of a rule on events before this process."""
        self._started_at = clock.now()
        self._started_wall = clock.wall()

    @property
    def firing(self) -> list[Alert]:
        """Alerts that fire, the latest first."""
        return sorted(self._open.values(), key=lambda alert: -alert.began_at)

    def firing_in(self, run: str) -> list[Alert]:
        """Alerts of a run that fire."""
        return [alert for (_, name), alert in self._open.items() if name == run]

    def observe(self, run: str, report: Report, samples: Iterable[Sample], fleet: FleetStatus | None = None) -> None:
        """Evaluates a report of a run and what will be recorded of it. fleet: status of its fleet service, on which
        diagnoses depend."""
        watch = self._runs.get(run)
        if watch is None:
            watch = self._runs[run] = RunWatch(run)
            watch.reported_at = report.at
            for rule in self._rules.values():
                self._put(watch, rule)
        self._observed_at[run] = self._clock.now()
        watch.observe(report, samples, fleet)

    def observe_steps(self, run: str, steps: Iterable[TrainingStep]) -> None:
        """Evaluates training steps of a run that has reported, exactly as they were reported."""
        if run in self._runs:
            self._runs[run].add_steps(steps)

    def forget(self, run: str) -> None:
        """Ends the evaluation of a run that is no longer followed; its alerts are resolved."""
        self._runs.pop(run, None)
        self._observed_at.pop(run, None)
        self._started_at = min(self._started_at, self._clock.now() - UNFOLLOWED_S)

    async def run(self) -> None:
        """Evaluates and stores until cancelled."""
        await periodic(self._try_tick, every_s=TICK_S, clock=self._clock)

    async def _try_tick(self) -> None:
        try:
            await self.tick()
        except (DBAPIError, Unavailable) as problem:
            log.warning("alerts_not_stored", problem=type(problem).__name__)

    async def tick(self) -> None:
        """Loads changed rules, evaluates the time, and stores what began and ended."""
        if self._rules_version < 0:
            await self._load_alerts()
        if self._rules_version != self._store.changes:
            await self._load_rules()
        for name, watch in self._runs.items():
            silent_s = self._clock.now() - self._observed_at[name]
            if silent_s > SILENCE_S:
                watch.advance(watch.reported_at + silent_s)
        changes = [*self._begun(), *self._ended(), *self._unmuted()]
        if changes:
            stored = await self._store.database.write(lambda session: self._stored(session, changes))
            for change in changes:
                alert = stored.get(change.key)
                if alert is None or alert.ended_at is not None:
                    self._open.pop(change.key, None)
                else:
                    self._open[change.key] = alert

    async def _load_alerts(self) -> None:
        alerts = await self._store.database.read(
            lambda session: session.exec(select(Alert).order_by(col(Alert.id))).all()
        )
        self._open = {(alert.rule_id, alert.run): alert for alert in alerts if alert.ended_at is None}
        self._evaluated_until = {(alert.rule_id, alert.run): alert.ended_at or alert.began_at for alert in alerts}

    async def _load_rules(self) -> None:
        version = self._store.changes
        rules = {rule.id: rule for rule in await self._store.rules()}
        for watch in self._runs.values():
            for rule_id in [rule_id for rule_id in watch.watches if rule_id not in rules]:
                watch.drop(rule_id)
            for rule in rules.values():
                known = self._rules.get(rule.id)
                if known is None or known.changed_at != rule.changed_at:
                    watch.drop(rule.id)
                    self._put(watch, rule)
        self._rules, self._rules_version = rules, version

    def _put(self, watch: RunWatch, rule: Rule) -> None:
        if not rule.spec.covers_run(watch.run):
            return
        key = (rule.id, watch.run)
        alert = self._open.get(key)
        firing = {alert.series: alert.number} if alert is not None and alert.began_at >= rule.changed_at else {}
        since = max(rule.changed_at, self._evaluated_until.get(key, 0.0)) if rule.spec.kind == EVENT else 0.0
        began_at = max(rule.changed_at, self._started_wall) if rule.spec.is_of_steps else watch.reported_at
        watch.put(rule.id, RuleWatch(rule.spec, since=began_at, firing=firing), since=since)

    def _begun(self) -> list[_Change]:
        changes = []
        for name, watch in self._runs.items():
            for rule_id, rule_watch in watch.watches.items():
                rule = self._rules.get(rule_id)
                if rule is not None and rule_watch.firing and (rule_id, name) not in self._open:
                    alert = begun_alert(rule, name, rule_watch, at=watch.reported_at)
                    changes.append(_Change(key=(rule_id, name), rule=rule, began=alert))
        return changes

    def _ended(self) -> list[_Change]:
        changes = []
        for (rule_id, name), alert in self._open.items():
            rule, watch = self._rules.get(rule_id), self._runs.get(name)
            because = ""
            if rule is None or rule.changed_at > alert.began_at:
                because = CHANGED
            elif watch is None:
                because = ENDED if self._clock.now() - self._started_at >= UNFOLLOWED_S else ""
            elif rule_id not in watch.watches or not watch.watches[rule_id].firing:
                because = NORMAL
            if because:
                changes.append(_Change(key=(rule_id, name), rule=rule, because=because))
        return changes

    def _unmuted(self) -> list[_Change]:
        """Alerts that fire and whose notices were not queued, because the rule was muted."""
        return [
            _Change(key=key, rule=rule)
            for key, alert in self._open.items()
            if not alert.is_notified and (rule := self._rules.get(key[0])) is not None and not self._is_muted(rule)
        ]

    def _is_muted(self, rule: Rule) -> bool:
        return rule.muted_until > self._clock.wall()

    def _stored(self, session: Session, changes: Sequence[_Change]) -> dict[Key, Alert]:
        stored = {}
        for change in changes:
            row = change.began if change.began is not None else session.get(Alert, self._open[change.key].id)
            if row is None:
                continue
            session.add(row)
            if change.because:
                run = self._runs.get(row.run)
                row.ended_at = max(row.began_at, run.reported_at if run is not None else self._clock.wall())
                row.ended_because = change.because
            session.flush()
            self._notify(session, row, change.rule)
            stored[change.key] = row
        prune_alerts(session)
        return stored

    def _notify(self, session: Session, row: Alert, rule: Rule | None) -> None:
        now = self._clock.wall()
        if rule is None or self._is_muted(rule):
            return
        if row.ended_at is not None:
            if row.is_notified:
                enqueue(session, rule.spec.receivers, row, RESOLVED, now=now)
        elif not row.is_notified:
            enqueue(session, rule.spec.receivers, row, FIRING, now=now)
            row.is_notified = True


def begun_alert(rule: Rule, run: str, watch: RuleWatch, *, at: float) -> Alert:
    """Returns the alert of a rule whose condition holds for some series."""
    subject, firing = next(iter(watch.firing.items()))
    return Alert(
        rule_id=rule.id,
        rule_name=rule.spec.name,
        run=run,
        severity=rule.spec.severity.value,
        series=subject,
        series_value=rule.spec.value,
        text=_text(rule, subject, watch),
        number=firing.value,
        subjects=len(watch.firing),
        began_at=at,
    )


def _text(rule: Rule, subject: str, watch: RuleWatch) -> str:
    spec, firing = rule.spec, watch.firing[subject]
    name = subject.partition("/")[2] or subject
    if spec.is_of_records:
        text = f"{name}: {firing.text}" if firing.text else spec.sentence
    elif firing.value is None or spec.condition is Condition.NOT_FINITE:
        text = spec.sentence
    else:
        text = f"{formats.figure(firing.value)} at {name}: {spec.sentence}"
    more = len(watch.firing) - 1
    return f"{text} (and {formats.several(more, 'other series') if more > 1 else 'one other series'})" if more else text
