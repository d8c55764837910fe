"""ASGI application of the proxy: from a request to the handler of its session, and back in the client's dialect."""

import asyncio
import json
import traceback
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from astraflow.agents.calls import CallRefused, Refusal, TokenCall
from astraflow.agents.dialects.dialect import (
    STATUS,
    CallContext,
    Dialect,
    ParsedCall,
    ParsedMessages,
    parse_json,
    to_json,
)
from astraflow.agents.dialects.routes import CALLS, COUNTS, RESPONSES_PATH, dialect_of, model_answer
from astraflow.agents.proxy.requests import ClientGone, HttpRequest
from astraflow.agents.proxy.sessions import ProxySession, SessionTable, ended
from astraflow.contract.rollouts.agent_calls import AgentCall, CallOutcome
from astraflow.contract.rollouts.failures import RolloutFailed
from astraflow.runtime.clock import Clock
from astraflow.runtime.logs import get_logger

log = get_logger()

FIRST_BYTE_S = 20.0
"""Time after which a stream begins with comments while the reply is not there. Until then an error has its own HTTP
status; afterwards it is an event of the stream, which SDKs do not retry."""
KEEP_ALIVE_S = 10.0
_COMMENT = b": waiting for the reply\n\n"
_DEFECT_STATUS = 500

Headers = list[tuple[bytes, bytes]]


class SessionFailed(CallRefused):
    """An engine has failed, or the handler or the proxy has a defect. HTTP 500."""

    def __init__(self, session: ProxySession, problem: BaseException) -> None:
        super().__init__(
            "cannot answer the call: the session failed; see the failure of its episode and the log of the node",
            refusal=Refusal.INVALID,
            code="agent.session_failed",
        )
        session.failure = problem
        if not isinstance(problem, RolloutFailed):  # which the episode reports
            trace = session.records.redacted("".join(traceback.format_exception(problem)).encode()).decode()
            log.error("agent_call_failed", error=type(problem).__name__, traceback=trace)


@dataclass(slots=True)
class _Exchange:
    """A request of a session for a reply, its answer, and what is recorded of both."""

    session: ProxySession
    request: HttpRequest
    dialect: Dialect[Any, Any]
    send: Send
    began_s: float
    model: str = ""
    has_begun: bool = False
    """A stream's headers are sent."""
    outcome: CallOutcome = CallOutcome.ABORTED
    reply_id: str = ""
    answer: bytes = b""

    def recorded(self) -> AgentCall:
        session = self.session
        return AgentCall(
            began_s=self.began_s,
            duration_s=session.elapsed_s() - self.began_s,
            dialect=self.dialect.name,
            model=session.records.text(self.model.encode()),
            request=session.records.text(self.request.body),
            reply=session.records.text(self.answer),
            outcome=self.outcome,
        )


class ProxyApp:
    """Answers requests with the handlers of their sessions."""

    def __init__(
        self,
        sessions: SessionTable,
        clock: Clock,
        *,
        first_byte_s: float = FIRST_BYTE_S,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._sessions = sessions
        self._clock = clock
        self._first_byte_s = first_byte_s
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        request = HttpRequest(scope, receive)
        dialect = dialect_of(request.path, is_anthropic=request.is_anthropic)
        session: ProxySession | None = None
        try:
            try:
                session = self._sessions.session(request.secrets())
                await self._answer(session, request, dialect, send)
            except CallRefused as problem:
                await request.discard()
                status = _status(problem)
                error = to_json(dialect.error(problem, status))
                body = error if session is None else session.records.redacted(error)
                await _send(send, status, body, request=request, headers=_retry_headers(problem))
        except ClientGone:
            return

    async def _answer(
        self, session: ProxySession, request: HttpRequest, dialect: Dialect[Any, Any], send: Send
    ) -> None:
        path = request.path
        if request.method == "POST" and path in CALLS:
            exchange = _Exchange(session, request, dialect, send, began_s=session.elapsed_s())
            await self._answer_call(exchange)
        elif request.method == "POST" and path in COUNTS:
            await self._answer_count(session, request, dialect, send)
        elif request.method == "POST" and path == "/reward" and session.takes_reward:
            await self._take_reward(session, request, send)
        elif request.method == "GET" and path.startswith(RESPONSES_PATH):
            await request.discard()
            body = session.responses.body(path.removeprefix(RESPONSES_PATH).removeprefix("resp_"))
            await _send(send, 200, body, request=request)
        elif request.method == "GET" and (path == "/v1/models" or path.startswith("/v1/models/")):
            await request.discard()
            models = model_answer(
                session.handler.models,
                path.removeprefix("/v1/models").removeprefix("/"),
                is_anthropic=request.is_anthropic,
            )
            await _send(send, 200, to_json(models), request=request)
        else:
            raise CallRefused(
                f"cannot answer {request.method} {path[:200]}: the proxy has no such route; use the chat, responses or "
                "messages API",
                refusal=Refusal.NOT_FOUND,
                code="agent.unknown_route",
            )

    async def _take_reward(self, session: ProxySession, request: HttpRequest, send: Send) -> None:
        """Keeps a posted JSON value as the session's reward; the workflow checks it."""
        try:
            await request.read(session)
            try:
                session.reward = json.loads(bytes(request.body))
            except (ValueError, RecursionError):
                raise CallRefused(
                    "cannot take the reward: the body is no JSON value; post a number or an object",
                    refusal=Refusal.INVALID,
                    code="agent.invalid_posted_reward",
                ) from None
            await _send(send, 200, b"{}", request=request)
        finally:
            request.release(session)

    async def _answer_count(
        self, session: ProxySession, request: HttpRequest, dialect: Dialect[Any, Any], send: Send
    ) -> None:
        try:
            await _reporting_defects(session, self._count(session, request, dialect, send))
        finally:
            request.release(session)

    async def _count(self, session: ProxySession, request: HttpRequest, dialect: Dialect[Any, Any], send: Send) -> None:
        await request.read(session)
        parsed = dialect.parse(parse_json(request.body), self._context(session, request))
        task = session.start(session.handler.count_tokens(parsed.call))
        count = await self._result(session, request, task)
        await _send(send, 200, to_json(COUNTS[request.path].count(count)), request=request)

    async def _answer_call(self, exchange: _Exchange) -> None:
        try:
            try:
                await _reporting_defects(exchange.session, self._reply(exchange))
            except CallRefused as problem:
                exchange.outcome = CallOutcome.REFUSED
                exchange.answer = str(problem).encode()
                if not exchange.has_begun:
                    raise
                error = exchange.dialect.stream_error(problem, _status(problem))
                await _send_event(exchange, exchange.session.records.redacted(error))
        finally:
            exchange.request.release(exchange.session)
            exchange.session.records.add(exchange.recorded(), exchange.reply_id)

    async def _reply(self, exchange: _Exchange) -> None:
        session, request = exchange.session, exchange.request
        await request.read(session)
        body = parse_json(request.body)
        exchange.model = str(body.get("model") or "")
        parsed = exchange.dialect.parse(body, self._context(session, request))
        reply = await self._handled(exchange, parsed)
        exchange.outcome = session.records.add_reply(reply.id)
        exchange.reply_id = reply.id
        answer = exchange.dialect.reply(parsed, reply)
        exchange.answer = to_json(answer)
        if exchange.dialect.name == "chat":  # the only one with a message for each that was sent
            session.known = ParsedMessages(sent=body["messages"], messages=parsed.call.messages)
        if exchange.dialect.name == "responses":
            session.responses.add(reply.id, exchange.answer, has_instructions=bool(body.get("instructions")))
        if parsed.is_streaming:
            await _send_event(exchange, b"".join(exchange.dialect.stream(parsed, answer)))
        else:
            await _send(exchange.send, 200, exchange.answer, request=request)

    async def _handled(self, exchange: _Exchange, parsed: ParsedCall[Any]) -> Any:
        """Returns the handler's reply.

        Once a stream has begun, its client cannot be asked to repeat the call later: it is repeated here.
        """
        session = exchange.session
        handler = session.handler
        while True:
            call = parsed.call
            answer = handler.generate(call) if isinstance(call, TokenCall) else handler.complete(call)
            task = session.start(answer)
            try:
                return await self._result(session, exchange.request, task, exchange if parsed.is_streaming else None)
            except CallRefused as problem:
                if problem.refusal is not Refusal.BUSY or not exchange.has_begun:
                    raise
                await self._result(
                    session, exchange.request, session.start(self._clock.sleep(problem.retry_after_s)), exchange
                )

    async def _result(
        self,
        session: ProxySession,
        request: HttpRequest,
        task: asyncio.Task[Any],
        stream: _Exchange | None = None,
    ) -> Any:
        """Returns the result of a handler's call, and sends comments to a stream meanwhile. Cancels the call when the
        client disconnects. Raises: CallRefused, ClientGone."""
        gone = request.disconnected
        wait_s = None if stream is None else self._keep_alive_s if stream.has_begun else self._first_byte_s
        try:
            while True:
                await asyncio.wait((task, gone), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return _outcome(session, task)
                if gone.done():
                    raise ClientGone
                if stream is not None:
                    await _send_event(stream, _COMMENT, more=True)
                    wait_s = self._keep_alive_s
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _context(self, session: ProxySession, request: HttpRequest) -> CallContext:
        return CallContext(
            retry_key=request.retry_key(),
            is_retry=request.is_retry(),
            created_s=int(self._clock.wall()),
            conversation=session.responses.conversation,
            known=session.known,
        )


def _outcome(session: ProxySession, task: asyncio.Task[Any]) -> Any:
    if task.cancelled() and session.is_ended:
        raise ended()
    problem = asyncio.CancelledError() if task.cancelled() else task.exception()
    if problem is None:
        return task.result()
    if isinstance(problem, CallRefused):
        raise problem
    raise SessionFailed(session, problem)


async def _reporting_defects(session: ProxySession, work: Coroutine[Any, Any, None]) -> None:
    """Answers defects of the proxy as those of a handler."""
    try:
        await work
    except (CallRefused, ClientGone):
        raise
    except Exception as problem:  # whatever it is, the agent learns that its session failed
        raise SessionFailed(session, problem) from problem


def _status(problem: CallRefused) -> int:
    return _DEFECT_STATUS if isinstance(problem, SessionFailed) else STATUS[problem.refusal]


def _retry_headers(problem: CallRefused) -> Headers:
    """Returns headers that tell SDKs whether to repeat the call."""
    if problem.refusal is not Refusal.BUSY:
        return [(b"x-should-retry", b"false")]
    return [(b"x-should-retry", b"true"), (b"retry-after", str(max(1, problem.retry_after_s)).encode())]


async def _send(
    send: Send, status: int, body: bytes, *, request: HttpRequest, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    fields: Headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    if request.must_close:
        fields.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def _send_event(exchange: _Exchange, data: bytes, *, more: bool = False) -> None:
    if not exchange.has_begun:
        exchange.has_begun = True
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
    await exchange.send({"type": "http.response.body", "body": data, "more_body": more})
