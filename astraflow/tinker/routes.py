"""HTTP routes of the Tinker API, as its SDK 0.38 calls them: JSON, and protobuf where the SDK asks for it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from astraflow.contract.errors import (
    AstraFlowError,
    Conflict,
    InvalidInput,
    NotAuthenticated,
    NotPermitted,
    RateLimited,
    UnknownPolicy,
)
from astraflow.runtime.logs import get_logger
from astraflow.runtime.untrusted_json import parsed_json
from astraflow.tinker import requests as api
from astraflow.tinker.page import Page
from astraflow.tinker.service import TinkerServer

log = get_logger()

PREFIX = "/api/v1"
PROTOBUF = "application/x-protobuf"
WAIT_S = 20.0
"""Longest wait for a result within one request; the SDK gives up after 45 s."""
_PROTOBUF_ANSWERS = ("forward_backward", "sample")
_STATUS: Mapping[type[AstraFlowError], int] = {
    NotAuthenticated: 401,
    NotPermitted: 403,
    UnknownPolicy: 404,
    InvalidInput: 422,
    Conflict: 422,
    RateLimited: 429,
}
CLIENT_CONFIG = {
    "pjwt_auth_enabled": False,
    "parallel_fwdbwd_chunks": False,
    "sample_use_retrieve_futures": False,
    "proto_compress_fwdbwd": False,
    "custom_loss_server_side": False,
    "sample_join_sampling_session": False,
}
"""Flags of the SDK: requests of a model arrive in order, and what this server does not serve is off."""

Handler = Callable[[str, Request], Awaitable[Mapping[str, Any] | Response]]
Parsed = TypeVar("Parsed", bound=api.TinkerRequest)


def application(server: TinkerServer, *, max_request_bytes: int) -> Starlette:
    """Returns the ASGI application of a server."""
    routes = _Routes(server, max_request_bytes)
    shown = Route("/", Page(server).show)
    return Starlette(routes=[shown, *routes.all(), Route("/{path:path}", routes.not_served, methods=_METHODS)])


_METHODS = ["GET", "POST", "PUT", "DELETE"]


class _Routes:
    def __init__(self, server: TinkerServer, max_request_bytes: int) -> None:
        self._server = server
        self._max_request_bytes = max_request_bytes

    def all(self) -> list[Route]:
        """Returns the routes that are served."""
        server, catalogue = self._server, self._server.catalogue
        posts: Mapping[str, Handler] = {
            "client/config": self._constant(CLIENT_CONFIG),
            "client/dynamic_config": self._constant({"sample_cancel_enabled": True}),
            "telemetry": self._constant({"status": "accepted"}),
            "create_session": self._json(api.CreateSession, server.create_session),
            "session_heartbeat": self._json(api.SessionRequest, server.heartbeat),
            "sessions/{name}/finish": self._finish,
            "create_model": self._json(api.CreateModel, server.create_model),
            "get_info": self._json(api.ModelRequest, catalogue.model_info),
            "forward_backward": self._forward_backward,
            "optim_step": self._json(api.OptimStep, server.submit),
            "save_weights": self._json(api.SaveWeights, server.submit),
            "save_weights_for_sampler": self._json(api.SaveWeightsForSampler, server.submit),
            "load_weights": self._json(api.LoadWeights, server.load_weights),
            "unload_model": self._json(api.ModelRequest, server.unload),
            "create_sampling_session": self._json(api.CreateSamplingSession, server.create_sampling_session),
            "asample": self._json(api.Sample, server.sample),
            "cancel_future": self._json(api.RetrieveFuture, server.cancel),
            "retrieve_future": self._retrieve,
            "weights_info": self._json(api.WeightsInfo, catalogue.weights_info),
        }
        gets: Mapping[str, Callable[[str, Request], Mapping[str, Any]]] = {
            "get_server_capabilities": lambda _tenant, _request: catalogue.capabilities,
            "samplers/{name}": lambda tenant, request: server.samplers.info(tenant, request.path_params["name"]),
            "training_runs": lambda tenant, request: _page("training_runs", catalogue.training_runs(tenant), request),
            "training_runs/{name}": lambda tenant, request: catalogue.training_run(tenant, request.path_params["name"]),
            "training_runs/{name}/checkpoints": lambda tenant, request: {
                "checkpoints": catalogue.checkpoints(tenant, request.path_params["name"])
            },
            "checkpoints": lambda tenant, request: _page("checkpoints", catalogue.checkpoints(tenant), request),
        }
        return [
            Route(f"{PREFIX}/healthz", _healthz),
            *(Route(f"{PREFIX}/{path}", self._endpoint(handler), methods=["POST"]) for path, handler in posts.items()),
            *(Route(f"{PREFIX}/{path}", self._endpoint(_getting(get)), methods=["GET"]) for path, get in gets.items()),
            Route(
                f"{PREFIX}/training_runs/{{model}}/checkpoints/{{kind}}/{{name}}",
                self._endpoint(self._delete_checkpoint),
                methods=["DELETE"],
            ),
        ]

    async def not_served(self, request: Request) -> Response:
        """Answers the endpoints that are not served, by their name."""
        path = request.url.path[:200]
        return _refusal(
            404,
            "tinker.endpoint_not_served",
            f"cannot use {path!r}: this server does not serve the endpoint; see the table of what it serves",
        )

    def _endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            tenant = ""
            try:
                tenant = self._server.tenants.authenticate(request.headers.get("x-api-key", ""))
                result = await handler(tenant, request)
                return result if isinstance(result, Response) else JSONResponse(dict(result))
            except AstraFlowError as problem:
                self._server.audit.write(tenant, request.url.path, "", code=problem.code)
                return _refusal(_status(problem), problem.code, str(problem))
            except Exception as problem:  # the client gets an answer; the log has the traceback
                log.exception("request_failed", path=request.url.path)
                return _refusal(500, "internal_error", f"{type(problem).__name__}: {problem}"[:500])

        return answer

    def _constant(self, value: Mapping[str, Any]) -> Handler:
        async def answer(_tenant: str, request: Request) -> Mapping[str, Any]:
            await self._body(request)
            return value

        return answer

    def _json(self, model: type[Parsed], serve: Callable[[str, Parsed], Mapping[str, Any]]) -> Handler:
        async def answer(tenant: str, request: Request) -> Mapping[str, Any]:
            return serve(tenant, await self._parsed(request, model))

        return answer

    async def _finish(self, tenant: str, request: Request) -> Mapping[str, Any]:
        self._server.finish(tenant, request.path_params["name"])
        return {}

    async def _forward_backward(self, tenant: str, request: Request) -> Mapping[str, Any]:
        kind, encoding = (request.headers.get(name, "") for name in ("content-type", "content-encoding"))
        if kind.partition(";")[0].strip() != PROTOBUF or encoding:
            raise InvalidInput(
                f"cannot read the request: its Content-Type is {kind[:80]!r}, its Content-Encoding {encoding[:80]!r}; "
                f"send {PROTOBUF} without encoding, as the SDK 0.38 does",
                code="tinker.not_protobuf",
            )
        return self._server.forward_backward(tenant, await self._body(request))

    async def _retrieve(self, tenant: str, request: Request) -> Response:
        retrieve = await self._parsed(request, api.RetrieveFuture)
        row = await self._server.answer(tenant, retrieve.request_id, wait_s=WAIT_S)
        if row.outcome is None or row.answer is None:
            return JSONResponse({"type": "try_again", "queue_state": "active"}, status_code=408)
        if row.outcome != "ok":
            return JSONResponse({"error": row.answer.decode(), "category": row.outcome})
        if row.kind not in _PROTOBUF_ANSWERS:
            return Response(row.answer, media_type="application/json")
        if PROTOBUF not in request.headers.get("accept", ""):
            return _refusal(
                406,
                "tinker.protobuf_only",
                f"cannot answer a {row.kind} request as JSON: its results are protobuf, as for the SDK 0.38; send "
                f"Accept: {PROTOBUF}",
            )
        return Response(row.answer, media_type=PROTOBUF)

    async def _delete_checkpoint(self, tenant: str, request: Request) -> Response:
        names = request.path_params
        self._server.catalogue.delete_checkpoint(tenant, f"tinker://{names['model']}/{names['kind']}/{names['name']}")
        return Response(status_code=204)

    async def _parsed(self, request: Request, model: type[Parsed]) -> Parsed:
        """Returns the checked body. Raises: InvalidInput naming each field."""
        try:
            values = parsed_json(await self._body(request), limit=self._max_request_bytes)
        except ValueError as problem:
            raise InvalidInput(
                f"cannot read the request: not JSON: {problem}; correct it", code="tinker.not_json"
            ) from None
        if not isinstance(values, dict):
            raise InvalidInput(
                "cannot read the request: it is not a JSON object; send an object", code="tinker.not_json"
            )
        return model.parse(values, where="request")

    async def _body(self, request: Request) -> bytes:
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > self._max_request_bytes:
                raise InvalidInput(
                    f"cannot read the request: it has more than {self._max_request_bytes} bytes; send less data",
                    code="tinker.request_too_large",
                )
        return bytes(data)


async def _healthz(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


def _getting(get: Callable[[str, Request], Mapping[str, Any]]) -> Handler:
    async def answer(tenant: str, request: Request) -> Mapping[str, Any]:
        return get(tenant, request)

    return answer


def _status(problem: AstraFlowError) -> int:
    return next((status for kind, status in _STATUS.items() if isinstance(problem, kind)), 503)


def _refusal(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"code": code, "message": message}, status_code=status)


def _page(name: str, rows: list[dict[str, Any]], request: Request) -> Mapping[str, Any]:
    """Returns the requested part of rows, and the cursor. Raises: InvalidInput."""
    try:
        offset, limit = (int(request.query_params.get(key, value)) for key, value in (("offset", 0), ("limit", 20)))
    except ValueError:
        offset = limit = -1
    if offset < 0 or not 0 <= limit <= 1000:
        raise InvalidInput(
            "cannot list: offset and limit are not numbers from 0 up, limit at most 1000; correct them",
            code="tinker.invalid_field",
        )
    cursor = {"offset": offset, "limit": limit, "total_count": len(rows)}
    return {name: rows[offset : offset + limit], "cursor": cursor}
