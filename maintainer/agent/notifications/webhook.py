"""Sends notices to a webhook, in order, until they arrive or are too old, from a bounded queue.

Notices are stored in the queue's file before they are sent, and removed once they arrived or are dropped. A process
that ends in between sends a notice again with the same `id`. A notice that fails delays the later ones: a receiver gets
alarms and their ends in order.

The URL is a secret (it permits posting): it is read from the environment or a file, and appears in no log, error,
status or transcript.
"""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import Clock
from astraflow.runtime.imports import needs_extra
from astraflow.runtime.logs import get_logger
from maintainer.agent.config import NotifyConfig
from maintainer.agent.notifications.notice_queue import Notice, NoticeQueue

log = get_logger()

POST_TIMEOUT_S = 10.0
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0
MAX_CHARACTERS = 2000

UNUSABLE_NOTICE = (400, 413, 415, 422)
"""Statuses that concern the notice itself: repeating it is useless, and later notices may arrive. After any other
status the notice is sent again, because people can mend the receiver, its permissions and its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer of a webhook."""

    status: int
    retry_after: str = ""
    """Header Retry-After: seconds or a date; empty for none."""


Post: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[Answer]]
"""Posts JSON to a URL. Raises: OSError without an answer."""


def payload(notice: Notice, *, kind: str) -> dict[str, Any]:
    """Body of the request. kind: generic or slack."""
    if kind == "slack":
        title = f"*{_plain(notice.title)}* ({_plain(notice.run)})"
        facts = ", ".join(f"{name} {value}" for name, value in notice.facts.items())
        lines = [title, _plain(notice.text), *([_plain(facts)] if facts else [])]
        return {"text": "\n".join(lines), "unfurl_links": False}
    return {
        "source": "astraflow.maintainer",
        "id": notice.id,
        "run": notice.run,
        "kind": notice.kind,
        "severity": notice.severity,
        "title": notice.title,
        "text": notice.text[:MAX_CHARACTERS],
        "at": notice.at,
        "facts": dict(notice.facts),
    }


def webhook_url(config: NotifyConfig) -> str:
    """URL of the webhook; empty for none. The messages never contain it. Raises: InvalidInput."""
    url = os.environ.get(config.url_variable, "").strip()
    if config.url_file:
        try:
            url = Path(config.url_file).read_text(encoding="utf-8").strip()
        except OSError as problem:
            raise InvalidInput(
                f"cannot read notify.url_file {config.url_file!r}: {problem.strerror}; check path and permissions",
                code="maintainer.webhook_file_unreadable",
            ) from None
    if url and not url.startswith(("https://", "http://")):
        raise InvalidInput(
            "cannot use the webhook: its URL is invalid; begin it with https:// or http://",
            code="maintainer.invalid_webhook_url",
        )
    return url


class Outcome(Enum):
    """Result of one attempt to send a notice."""

    SENT = "sent"
    FAILED = "failed"
    """The receiver may get the notice later: it stays first in the queue, and is sent again after a pause."""
    DROPPED = "dropped"


class Notifier:
    """Notifier of one process."""

    def __init__(
        self,
        config: NotifyConfig,
        *,
        run: str,
        clock: Clock,
        post: Post | None,
        url: str,
        queue: NoticeQueue | None = None,
    ) -> None:
        """queue: stores waiting notices; None keeps them in memory only."""
        self._config = config
        self._run = run
        self._clock = clock
        self._post = post
        self._url = url
        self.queue = queue if queue is not None else NoticeQueue(None, run=run)
        self.sent = 0
        self._pause_s = FIRST_BACKOFF_S

    @property
    def is_enabled(self) -> bool:
        """True if a webhook is configured."""
        return bool(self._url) and self._post is not None

    @property
    def dropped(self) -> int:
        """Dropped notices, including those of earlier processes."""
        return self.queue.dropped

    @property
    def delayed(self) -> int:
        """Notices that wait because the last attempt failed."""
        return len(self.queue.unsent) if self._pause_s > FIRST_BACKOFF_S else 0

    async def enqueue(self, notice: Notice) -> None:
        """Queues a notice; returns once it is durable. Raises: StorageFull."""
        if self.is_enabled:
            self._add(notice)
            await self.queue.save()

    async def enqueue_journal(self, notices: Sequence[Notice], *, cursor: int) -> None:
        """Queues notices of the journal and stores its cursor in one write. Raises: StorageFull."""
        for notice in notices:
            self._add(notice)
        self.queue.cursor = cursor
        await self.queue.save()

    async def send_queued(self) -> None:
        """Sends queued notices until one fails; the next calls repeat it when its pause is over."""
        queue = self.queue
        while self.is_enabled and queue.waiting and self._is_due():
            notice = queue.sending = queue.waiting.popleft()
            try:
                outcome = await self._send(notice)
            except BaseException:  # cancelled: queue it again, as in the file
                queue.waiting.appendleft(notice)
                raise
            finally:
                queue.sending = None
            if outcome is Outcome.FAILED:
                queue.waiting.appendleft(notice)
            elif outcome is Outcome.DROPPED:
                queue.dropped += 1
                log.warning("notice_dropped", kind=notice.kind, id=notice.id)
            else:
                self.sent += 1
            await queue.save()

    def _is_due(self) -> bool:
        """True unless a pause lasts; a pause longer than notices are kept is one of a clock that was put back."""
        return not 0.0 < self.queue.next_attempt_at - self._clock.wall() <= self._keep_s

    @property
    def _keep_s(self) -> float:
        return self._config.keep_hours * 3600.0

    def _add(self, notice: Notice) -> None:
        queue = self.queue
        while len(queue.waiting) >= self._config.max_queued:
            queue.waiting.popleft()
            queue.dropped += 1
        queue.last_number += 1
        name = notice.id or f"notice-{queue.last_number}"
        queue.add(replace(notice, run=self._run, id=f"{self._run}:{name}", queued_at=self._clock.wall()))

    async def _send(self, notice: Notice) -> Outcome:
        """Posts the notice once; after a failure, sets the time of the next attempt."""
        if self._post is None or self._clock.wall() - notice.queued_at > self._keep_s:
            return Outcome.DROPPED
        retry_after = ""
        try:
            answer = await self._post(self._url, payload(notice, kind=self._config.kind))
            if 200 <= answer.status < 300:
                self._pause_s = FIRST_BACKOFF_S
                return Outcome.SENT
            log.info("webhook_refused", status=answer.status)
            if answer.status in UNUSABLE_NOTICE:
                return Outcome.DROPPED
            retry_after = answer.retry_after
        except OSError as problem:
            log.info("webhook_unreachable", problem=type(problem).__name__)
        now = self._clock.wall()
        asked_s = wait_s(retry_after, now=now)
        self.queue.next_attempt_at = now + min(self._pause_s if asked_s is None else asked_s, self._keep_s)
        self._pause_s = min(2 * self._pause_s, MAX_BACKOFF_S)
        return Outcome.FAILED


def wait_s(retry_after: str, *, now: float) -> float | None:
    """Returns the seconds that a header Retry-After asks for, at least a second; None without a valid one.

    >>> wait_s("120", now=0.0), wait_s("Thu, 01 Jan 1970 00:01:30 GMT", now=0.0), wait_s("soon", now=0.0)
    (120.0, 90.0, None)
    """
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return max(FIRST_BACKOFF_S, float(text))
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(FIRST_BACKOFF_S, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now)


def http_post() -> Post:
    """Posts by HTTP without following redirects. Raises: InvalidInput if the library is missing."""
    with needs_extra("llm", to="send to the webhook"):
        import httpx2

    async def post(url: str, body: Mapping[str, Any]) -> Answer:
        try:
            async with httpx2.AsyncClient(timeout=POST_TIMEOUT_S, follow_redirects=False) as client:
                response = await client.post(url, json=dict(body))
                return Answer(status=response.status_code, retry_after=response.headers.get("retry-after", ""))
        except (httpx2.HTTPError, httpx2.InvalidURL) as problem:
            raise OSError(type(problem).__name__) from None

    return post


def _plain(text: str) -> str:
    """Escapes mentions, links and formatting for Slack."""
    return text[:MAX_CHARACTERS].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
