"""Source without preemption notices, for machines that are not preempted or get no notice."""

from astraflow.raas.preemption import notices
from astraflow.raas.preemption.base import Notice
from astraflow.runtime.config.base import Config


class NoOptions(Config):
    """No options."""


@notices.register("none", options=NoOptions)
class NoNotice:
    """Returns no notice: the node is never preempted, or nothing announces it."""

    poll_interval_s = 3600.0

    def __init__(self, options: NoOptions) -> None:
        pass

    def poll(self, now: float) -> Notice | None:
        """Returns None."""
        return None
