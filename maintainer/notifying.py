"""Telling people who do not look: a webhook, in order, with a bounded number of tries and a bounded queue.

What waits is in the outbox's file before anything is sent, and leaves it once it has arrived or is given up. A process
that ends in between sends it again: `id` says that it is the same.

The address is a secret (whoever has it may post): it is read from the environment or a file, and stands in no log,
error, status or transcript.
"""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger
from maintainer.config import NotifyConfig
from maintainer.outbox import Notice, Outbox

log = get_logger()

POST_S = 10.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
MOST_CHARACTERS = 2000

Post: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[int]]
"""Sends JSON to an address; returns the status of the answer. Raises: OSError when there is none."""


def payload(notice: Notice, *, kind: str) -> dict[str, Any]:
    """As the receiver takes it. kind: generic or slack."""
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
        "text": notice.text[:MOST_CHARACTERS],
        "at": notice.at,
        "facts": dict(notice.facts),
    }


def address(config: NotifyConfig) -> str:
    """Where to post; empty for nowhere. Raises: InvalidInput, without the address."""
    found = os.environ.get(config.url_variable, "").strip()
    if config.url_file:
        try:
            found = Path(config.url_file).read_text(encoding="utf-8").strip()
        except OSError as problem:
            raise InvalidInput(f"notify.url_file {config.url_file} cannot be read: {problem.strerror}") from None
    if found and not found.startswith(("https://", "http://")):
        raise InvalidInput("the address of the webhook (notify) does not begin with https:// or http://")
    return found


class Notifier:
    """One for the process."""

    def __init__(
        self, config: NotifyConfig, *, run: str, clock: Clock, post: Post | None, url: str, outbox: Outbox | None = None
    ) -> None:
        """outbox: where notices wait; without one they are forgotten at the end of the process."""
        self._config = config
        self._run = run
        self._clock = clock
        self._post = post
        self._url = url
        self.outbox = outbox if outbox is not None else Outbox(None, run=run)
        self.sent = 0

    @property
    def is_on(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self._url) and self._post is not None

    @property
    def lost(self) -> int:
        """Given up, also by the processes before this one."""
        return self.outbox.lost

    async def tell(self, notice: Notice) -> None:
        """Have people told as soon as that goes; returns once it is kept. Raises: StorageFull."""
        if self.is_on:
            self._add(notice)
            await self.outbox.save()

    async def relay(self, notices: Sequence[Notice], *, cursor: int) -> None:
        """The same for what the journal says up to an entry: both are kept together. Raises: StorageFull."""
        for notice in notices:
            self._add(notice)
        self.outbox.cursor = cursor
        await self.outbox.save()

    async def push(self) -> None:
        """Send what waits."""
        outbox = self.outbox
        while self.is_on and outbox.waiting:
            notice = outbox.sending = outbox.waiting.popleft()
            try:
                is_sent = await self._sent(notice)
            except BaseException:  # cut short: it waits again, as it does in the file
                outbox.waiting.appendleft(notice)
                outbox.sending = None
                raise
            outbox.sending = None
            if is_sent:
                self.sent += 1
            else:
                outbox.lost += 1
                log.warning("not_notified", kind=notice.kind, tries=self._config.tries)
            await outbox.save()

    def _add(self, notice: Notice) -> None:
        outbox = self.outbox
        while len(outbox.waiting) >= self._config.queue:
            outbox.waiting.popleft()
            outbox.lost += 1
        outbox.numbered += 1
        name = notice.id or f"notice-{outbox.numbered}"
        outbox.add(replace(notice, run=self._run, id=f"{self._run}:{name}"))

    async def _sent(self, notice: Notice) -> bool:
        if self._post is None:
            return False
        body = payload(notice, kind=self._config.kind)
        pause_s = FIRST_PAUSE_S
        for number in range(self._config.tries):
            if number:
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                status = await self._post(self._url, body)
            except OSError as problem:
                log.info("webhook_away", problem=type(problem).__name__)
                continue
            if 200 <= status < 300:
                return True
            log.info("webhook_refused", status=status)
            if 400 <= status < 500 and status not in (408, 429):
                return False
        return False


def http_post() -> Post:
    """By HTTP, without following where an answer leads. Raises: InvalidInput when the library is not there."""
    try:
        import httpx2
    except ModuleNotFoundError:
        raise InvalidInput("a webhook needs the package httpx2: pip install 'astraflow[llm]' brings it") from None

    async def post(url: str, body: Mapping[str, Any]) -> int:
        try:
            async with httpx2.AsyncClient(timeout=POST_S, follow_redirects=False) as client:
                return int((await client.post(url, json=dict(body))).status_code)
        except (httpx2.HTTPError, httpx2.InvalidURL) as problem:
            raise OSError(type(problem).__name__) from None

    return post


def _plain(text: str) -> str:
    """Nothing in it mentions, links or formats for Slack."""
    return text[:MOST_CHARACTERS].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
