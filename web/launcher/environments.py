"""Environment of the processes that the page starts."""

import os

WITHHELD_VARIABLES = (
    *("ASTRAFLOW_TOKEN", "ASTRAFLOW_FLEET_TOKEN", "ASTRAFLOW_WEB_DATABASE", "ASTRAFLOW_OIDC_SECRET"),
    "ASTRAFLOW_MAIL_PASSWORD",
)
"""Secrets of this process, which runs must not inherit."""

FOLLOW_PARENT = "ASTRAFLOW_FOLLOW_PARENT"
"""Variable that ties a process to its parent; not inherited, because launched runs outlive this process."""


def child_environment() -> dict[str, str]:
    """Returns the environment of child processes."""
    return {name: value for name, value in os.environ.items() if name not in (*WITHHELD_VARIABLES, FOLLOW_PARENT)}
