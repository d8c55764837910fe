"""Changes of a journal that an earlier release wrote, by its schema version."""

import json
import sqlite3
from collections.abc import Callable, Mapping

from google.protobuf.unknown_fields import UnknownFieldSet

from astraflow.contract.record_kinds import Severity
from astraflow.wire.pb import control_plane_pb2 as pb

_MESSAGE = 5
"""Number of the field of an event that held its sentence up to version 14."""


def _from_14(database: sqlite3.Connection) -> None:
    """Names the tables of admissions and actions so; moves the sentence of each action to its value `text`."""
    database.execute("alter table routed rename to admissions")
    database.execute("alter table acts rename to actions")
    for ordinal, body in database.execute("select ordinal, body from actions").fetchall():
        event = pb.Event.FromString(body)
        unknown = UnknownFieldSet(event)
        fields = (unknown[index] for index in range(len(unknown)))
        text = next((field.data.decode() for field in fields if field.field_number == _MESSAGE), "")
        event.DiscardUnknownFields()
        event.severity, event.values = Severity.INFO.value, json.dumps({"text": text})
        database.execute("update actions set body = ? where ordinal = ?", (event.SerializeToString(), ordinal))


MIGRATIONS: Mapping[int, Callable[[sqlite3.Connection], None]] = {14: _from_14}
"""Change from each version to the next."""
