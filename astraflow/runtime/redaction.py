"""Removal of secrets from texts that leave the run's own pages and files."""

import re
from typing import Any

SECRET_PATTERN = re.compile(r"astraflow_pat_[\w-]+|(?<=login\?token=)[\w-]+")
"""Tokens of the page, and of its links."""
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s\"']+@")


def without_secrets(value: Any) -> Any:
    """Returns a document whose texts have no tokens of the page, and no users and passwords in addresses.

    >>> without_secrets({"a": ["s3://me:pw@host/x", 1]})
    {'a': ['s3://[secret]@host/x', 1]}
    """
    if isinstance(value, dict):
        return {key: without_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    if isinstance(value, str):
        return _USER_IN_URL.sub("[secret]@", SECRET_PATTERN.sub("[secret]", value))
    return value
