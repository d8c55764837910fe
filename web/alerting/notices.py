"""Content of notices: the JSON body of a webhook and the text of a mail."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.contract.records import clean
from web.components import formats
from web.database.tables import Alert

SCHEMA = "astraflow.alerts.v1"
"""Version of the body. Fields may be added; a change of a meaning changes the name."""

FIRING, RESOLVED, TEST = "firing", "resolved", "test"

MAX_NOTICE_ALERTS = 50
"""Alerts that a notice lists; it counts the others."""

MAX_LINE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Notice for one receiver: alerts that began or ended since its last one."""

    id: int
    """Id of the delivery; the same for each attempt."""
    events: tuple[tuple[str, Alert], ...]
    """`firing` or `resolved`, with the alert; empty for a test."""
    at: float
    """Unix seconds."""
    address: str
    """Address of the page."""

    @property
    def title(self) -> str:
        """Title in one line."""
        if not self.events:
            return "AstraFlow: test of an alert receiver"
        state, alert = self.events[0]
        more = f" and {formats.several(len(self.events) - 1, 'more alert')}" if len(self.events) > 1 else ""
        return clean(f"[{state}] {alert.severity}: {alert.rule_name} in {alert.run}{more}")[:MAX_LINE]

    @property
    def lines(self) -> list[str]:
        """One line for each listed alert."""
        if not self.events:
            return [f"This is a test. Notices of alerts arrive here. {self.address}/alerts"]
        lines = [self._line(state, alert) for state, alert in self.events[:MAX_NOTICE_ALERTS]]
        rest = len(self.events) - MAX_NOTICE_ALERTS
        return [*lines, f"and {rest} more: {self.address}/alerts"] if rest > 0 else lines

    def body(self) -> bytes:
        """Returns the JSON body of a webhook."""
        shown = self.events[:MAX_NOTICE_ALERTS]
        content = {
            "schema": SCHEMA,
            "id": self.id,
            "event": self.events[0][0] if self.events else TEST,
            "at": round(self.at, 3),
            "text": "\n".join([f"*{_for_slack(self.title)}*", *map(_for_slack, self.lines)]),
            "alerts": [_alert_fields(state, alert, self.url_of(alert)) for state, alert in shown],
            "more": max(0, len(self.events) - len(shown)),
        }
        return json.dumps(content, ensure_ascii=False).encode()

    def mail_text(self) -> str:
        """Returns the text of a mail."""
        return "\n\n".join(self.lines) + f"\n\n-- \nAstraFlow, {self.address}/alerts\n"

    def url_of(self, alert: Alert) -> str:
        """Returns the address of an alert, which shows its chart at that time."""
        return f"{self.address}/alerts/{alert.id}"

    def _line(self, state: str, alert: Alert) -> str:
        if state == FIRING:
            end = ""
        else:
            lasted = formats.duration((alert.ended_at or self.at) - alert.began_at)
            end = f" Resolved after {lasted}: {alert.ended_because}."
        text = f"[{state}] {alert.severity}: {alert.rule_name} in {alert.run}: {alert.text}.{end}"
        return f"{clean(text)[:MAX_LINE]} {self.url_of(alert)}"


def _alert_fields(state: str, alert: Alert, url: str) -> dict[str, Any]:
    return {
        "id": alert.id,
        "state": state,
        "rule": {"id": alert.rule_id, "name": alert.rule_name},
        "severity": alert.severity,
        "run": alert.run,
        "series": alert.series,
        "value_name": alert.series_value,
        "value": alert.number,
        "text": alert.text,
        "series_count": alert.subjects,
        "began_at": round(alert.began_at, 3),
        "ended_at": None if alert.ended_at is None else round(alert.ended_at, 3),
        "url": url,
    }


def _for_slack(text: str) -> str:
    """Escapes mentions and links for receivers that read the format of Slack."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def events_from_json(text: str, alerts: Sequence[Alert]) -> tuple[tuple[str, Alert], ...]:
    """Returns the events of a delivery with their alerts; those of deleted alerts are left out."""
    by_id = {alert.id: alert for alert in alerts}
    return tuple((state, by_id[alert_id]) for alert_id, state in json.loads(text or "[]") if alert_id in by_id)
