"""Which versions a policy's history keeps: pure decisions over its records."""

from collections.abc import Sequence

from astraflow.contract.ids import Version
from astraflow.weights.config import WeightsConfig
from astraflow.weights.records import Record


def first_kept(records: Sequence[Record], config: WeightsConfig) -> Version:
    """The version that the history should begin with, of records from the oldest to the newest: always an anchor.

    `keep_versions` stay, and whatever lies between them and the anchor before; fewer where they have more than
    `keep_bytes`. What the newest version is rebuilt from always stays.
    """
    oldest = records[-1].version - config.keep_versions + 1
    anchors = [record.version for record in records if record.full]
    first = max((anchor for anchor in anchors if anchor <= oldest), default=records[0].version)
    fitting = [anchor for anchor in anchors if anchor >= first and is_within(records, config, first=anchor)]
    return min(fitting, default=max(anchors, default=first)) if not is_within(records, config, first=first) else first


def is_anchor_due(records: Sequence[Record], config: WeightsConfig) -> bool:
    """Whether the newest version should be kept in full: `anchor_every` versions after the last one that is.

    Sooner where everything since that one has more than `keep_bytes`, and the newest version alone has not.
    """
    newest = records[-1]
    last = max((record.version for record in records if record.full), default=None)
    if last is None or newest.version - last >= config.anchor_every:
        return True
    is_alone_within = config.keep_bytes is not None and newest.manifest.size_bytes <= config.keep_bytes
    return newest.version != last and is_alone_within and not is_within(records, config, first=last)


def is_within(records: Sequence[Record], config: WeightsConfig, *, first: Version) -> bool:
    """Whether the versions from `first` on have no more than `keep_bytes`."""
    if config.keep_bytes is None:
        return True
    return sum(record.size_bytes for record in records if record.version >= first) <= config.keep_bytes
