"""Receivers of notices: webhooks and addresses of mail, as an admin gives them."""

import hashlib
import hmac
import re
from enum import Enum
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from astraflow.runtime.config.base import Config
from web.database.tables import AlertReceiver

MAX_ADDRESSES = 20

_ADDRESS = re.compile(r"[A-Za-z0-9._%+'-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


class ReceiverKind(Enum):
    """Kind of a receiver."""

    WEBHOOK = "webhook"
    MAIL = "mail"


class ReceiverFields(Config):
    """Fields of a receiver, each valid by itself."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$")
    """Unique name, which rules refer to."""
    kind: ReceiverKind = Field(strict=False)
    """Kind of the receiver."""
    target: str = Field(max_length=2000, pattern=r"^[!-~]([ -~]*[!-~])?$", repr=False)
    """`https://` URL of a webhook, which is never shown again; or addresses of mail, separated by commas."""
    allows_private: bool = False
    """Whether the URL may lead to this machine or a private network, also by `http://`."""


class ReceiverSpec(ReceiverFields):
    """Receiver of notices."""

    @model_validator(mode="after")
    def _is_usable(self) -> Self:
        problem = self._webhook_problem() if self.kind is ReceiverKind.WEBHOOK else self._mail_problem()
        if problem:
            raise ValueError(problem)
        return self

    def _webhook_problem(self) -> str:
        try:
            parts = urlsplit(self.target)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if host is None or port == 0 or parts.username is not None or " " in self.target:
            return "cannot use the URL: it is not a URL without user and password; use https://HOST/PATH"
        if parts.scheme != "https" and not (parts.scheme == "http" and self.allows_private):
            return "cannot use the URL: notices would travel unencrypted; use https://, or allow private addresses"
        return ""

    def _mail_problem(self) -> str:
        addresses = self.target.split(",")
        if len(addresses) > MAX_ADDRESSES:
            return f"cannot use the addresses: more than {MAX_ADDRESSES}; use a mailing list"
        wrong = next((address for address in addresses if not _ADDRESS.fullmatch(address.strip())), None)
        return "" if wrong is None else f"cannot use the address {wrong.strip()[:80]!r}: invalid; use NAME@HOST"


def public_target(receiver: AlertReceiver) -> str:
    """Returns the target without what permits posting: of a URL only scheme, host and port."""
    if receiver.kind == ReceiverKind.MAIL.value:
        return receiver.target
    parts = urlsplit(receiver.target)
    return f"{parts.scheme}://{parts.netloc}/…"


def signing_key(secret: bytes, salt: str) -> str:
    """Returns the key that signs the notices of a receiver. It is derived, so that the database alone has no key."""
    return hmac.new(secret, f"alert receiver {salt}".encode(), hashlib.sha256).hexdigest()
