"""Retention of a policy's versions: pure decisions over its records."""

from collections.abc import Sequence

from astraflow.contract.ids import Version
from astraflow.weights.config import WeightsConfig
from astraflow.weights.store.records import Record


def first_retained(records: Sequence[Record], config: WeightsConfig) -> Version:
    """Returns the first version to retain, of records from the oldest to the newest; always an anchor.

    `retained_versions` are retained, with all versions back to the preceding anchor; fewer if they exceed
    `max_retained_bytes`. The files that the newest version is rebuilt from are always retained.
    """
    oldest = records[-1].version - config.retained_versions + 1
    anchors = [record.version for record in records if record.full]
    first = max((anchor for anchor in anchors if anchor <= oldest), default=records[0].version)
    fitting = [anchor for anchor in anchors if anchor >= first and is_within_byte_limit(records, config, first=anchor)]
    return (
        min(fitting, default=max(anchors, default=first))
        if not is_within_byte_limit(records, config, first=first)
        else first
    )


def is_full_snapshot_due(records: Sequence[Record], config: WeightsConfig) -> bool:
    """Returns whether the newest version needs a full snapshot: `full_snapshot_every` versions after the last one.

    Sooner if the files since that one exceed `max_retained_bytes`, and the newest version alone does not.
    """
    newest = records[-1]
    last = max((record.version for record in records if record.full), default=None)
    if last is None or newest.version - last >= config.full_snapshot_every:
        return True
    is_alone_within = config.max_retained_bytes is not None and newest.manifest.size_bytes <= config.max_retained_bytes
    return newest.version != last and is_alone_within and not is_within_byte_limit(records, config, first=last)


def is_within_byte_limit(records: Sequence[Record], config: WeightsConfig, *, first: Version) -> bool:
    """Returns whether the versions from `first` on have at most `max_retained_bytes`."""
    if config.max_retained_bytes is None:
        return True
    return sum(record.size_bytes for record in records if record.version >= first) <= config.max_retained_bytes
