"""Sends notices to a webhook, in order, with bounded attempts and a bounded queue.

Notices are stored in the queue's file before they are sent, and removed once they arrived or are dropped. A process
that ends in between sends a notice again with the same `id`.

The URL is a secret (it permits posting): it is read from the environment or a file, and appears in no log, error,
status or transcript.
"""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from maintainer.agent.config import NotifyConfig
from maintainer.agent.notifications.notice_queue import Notice, NoticeQueue

log = get_logger()

POST_TIMEOUT_S = 10.0
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0
MAX_CHARACTERS = 2000

Post: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[int]]
"""Posts JSON to a URL; returns the HTTP status. Raises: OSError without an answer."""


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

    @property
    def is_enabled(self) -> bool:
        """True if a webhook is configured."""
        return bool(self._url) and self._post is not None

    @property
    def dropped(self) -> int:
        """Dropped notices, including those of earlier processes."""
        return self.queue.dropped

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
        """Sends queued notices."""
        queue = self.queue
        while self.is_enabled and queue.waiting:
            notice = queue.sending = queue.waiting.popleft()
            try:
                is_sent = await self._send(notice)
            except BaseException:  # cancelled: queue it again, as in the file
                queue.waiting.appendleft(notice)
                queue.sending = None
                raise
            queue.sending = None
            if is_sent:
                self.sent += 1
            else:
                queue.dropped += 1
                log.warning("notice_dropped", kind=notice.kind, tries=self._config.max_attempts)
            await queue.save()

    def _add(self, notice: Notice) -> None:
        queue = self.queue
        while len(queue.waiting) >= self._config.max_queued:
            queue.waiting.popleft()
            queue.dropped += 1
        queue.last_number += 1
        name = notice.id or f"notice-{queue.last_number}"
        queue.add(replace(notice, run=self._run, id=f"{self._run}:{name}"))

    async def _send(self, notice: Notice) -> bool:
        if self._post is None:
            return False
        body = payload(notice, kind=self._config.kind)
        pause_s = FIRST_BACKOFF_S
        for number in range(self._config.max_attempts):
            if number:
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_BACKOFF_S)
            try:
                status = await self._post(self._url, body)
            except OSError as problem:
                log.info("webhook_unreachable", problem=type(problem).__name__)
                continue
            if 200 <= status < 300:
                return True
            log.info("webhook_refused", status=status)
            if 400 <= status < 500 and status not in (408, 429):
                return False
        return False


def http_post() -> Post:
    """Posts by HTTP without following redirects. Raises: InvalidInput if the library is missing."""
    try:
        import httpx2
    except ModuleNotFoundError:
        raise InvalidInput(
            "cannot send to the webhook: the package httpx2 is missing; run pip install 'astraflow[llm]'",
            code="maintainer.package_missing",
        ) from None

    async def post(url: str, body: Mapping[str, Any]) -> int:
        try:
            async with httpx2.AsyncClient(timeout=POST_TIMEOUT_S, follow_redirects=False) as client:
                return int((await client.post(url, json=dict(body))).status_code)
        except (httpx2.HTTPError, httpx2.InvalidURL) as problem:
            raise OSError(type(problem).__name__) from None

    return post


def _plain(text: str) -> str:
    """Escapes mentions, links and formatting for Slack."""
    return text[:MAX_CHARACTERS].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
