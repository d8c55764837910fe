"""Sends notices by mail through a configured server."""

import smtplib
import ssl
from datetime import UTC, datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as MAIL_POLICY
from email.utils import format_datetime, make_msgid
from enum import Enum
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.runtime.config.base import Config
from astraflow.runtime.http.hosts import is_loopback
from web.alerting.notices import Notice

MAIL_TIMEOUT_S = 15.0


class Encryption(Enum):
    """Encryption of the connection to the mail server."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"
    """Only to this machine."""


class MailConfig(Config):
    """Mail server, of the file given by `--mail`. The password is in the variable ASTRAFLOW_MAIL_PASSWORD."""

    host: str
    """Name of the mail server."""
    port: int = Field(default=587, ge=1, le=65535)
    """Its port: 587 for starttls, 465 for tls."""
    encryption: Encryption = Encryption.STARTTLS
    """`starttls`, `tls`, or `none` for a server on this machine."""
    user: str = ""
    """Name to log in with; empty for a server without a login."""
    sender: str = Field(pattern=r"^[A-Za-z0-9._%+'-]{1,64}@[A-Za-z0-9.-]{1,253}$")
    """Address that notices come from."""
    authority: Path | None = None
    """PEM file of the authority of the server's certificate; absent for those of the system."""

    @model_validator(mode="after")
    def _is_encrypted(self) -> Self:
        if self.encryption is Encryption.NONE and not is_loopback(self.host):
            raise ValueError("cannot send mail unencrypted beyond this machine; use starttls or tls")
        return self


def read_mail_authority(config: MailConfig) -> ssl.SSLContext:
    """Returns the trusted certificates. Raises: InvalidInput for an unreadable file."""
    try:
        return ssl.create_default_context(cafile=config.authority)
    except OSError as problem:
        raise InvalidInput(
            f"cannot read mail.authority {str(config.authority)!r}: {problem}; give a PEM file",
            code="alert.invalid_mail_authority",
        ) from None


class MailSender:
    """Sends mail through one server."""

    def __init__(self, config: MailConfig, *, password: str) -> None:
        """Raises: InvalidInput for an unreadable authority."""
        self._config = config
        self._password = password
        self._trust = read_mail_authority(config)

    def send(self, notice: Notice, recipients: list[str]) -> None:
        """Sends a notice and blocks until the server has it. Raises: Unavailable; its cause contains no password."""
        config = self._config
        try:
            with self._connection() as server:
                if config.user:
                    server.login(config.user, self._password)
                refused = server.send_message(message_of(notice, recipients, sender=config.sender))
        except smtplib.SMTPResponseException as problem:
            raise _unavailable(config, f"it answered {problem.smtp_code}") from None
        except (smtplib.SMTPException, OSError) as problem:
            raise _unavailable(config, getattr(problem, "strerror", None) or type(problem).__name__) from None
        if refused:
            raise _unavailable(config, f"it refused {', '.join(sorted(refused))}")

    def _connection(self) -> smtplib.SMTP:
        config = self._config
        if config.encryption is Encryption.TLS:
            return smtplib.SMTP_SSL(config.host, config.port, timeout=MAIL_TIMEOUT_S, context=self._trust)
        server = smtplib.SMTP(config.host, config.port, timeout=MAIL_TIMEOUT_S)
        try:
            if config.encryption is Encryption.STARTTLS:
                server.starttls(context=self._trust)
        except BaseException:
            server.close()
            raise
        return server


def message_of(notice: Notice, recipients: list[str], *, sender: str) -> EmailMessage:
    """Returns the mail. Headers come from one-line texts, and a line break in them is an error of the library."""
    message = EmailMessage(policy=MAIL_POLICY)
    message["From"] = Address(addr_spec=sender)
    message["To"] = [Address(addr_spec=recipient) for recipient in recipients]
    message["Subject"] = notice.title
    message["Date"] = format_datetime(datetime.fromtimestamp(notice.at, UTC))
    message["Message-ID"] = make_msgid(f"alert{notice.id}", domain="astraflow.invalid")
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(notice.mail_text())
    return message


def _unavailable(config: MailConfig, cause: str) -> Unavailable:
    return Unavailable(
        f"cannot send mail through {config.host}:{config.port}: {cause}; check the file of --mail",
        code="alert.mail_failed",
    )
