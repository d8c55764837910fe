"""EC2 on loopback: moto's server plus the client tokens, errors and delayed listings that moto lacks.

Use `url` for a healthy endpoint, `failing(code, status)` for one where every launch fails with this error, and
`losing_answers` for one where launches succeed but their responses are lost.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from xml.etree import ElementTree

import boto3
import pytest
from botocore import loaders
from moto.backends import get_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}

_ERROR = (
    "<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
    "<RequestID>made-up</RequestID></Response>"
)


class Ec2Server:
    """A running server.

    has_client_tokens: without them, a repeated launch with the same token starts another instance, as in moto. lag_s:
    delay until a launched instance is listed.
    """

    def __init__(self) -> None:
        self.url = ""
        self.has_client_tokens = True
        self.lag_s = 0.0
        self.expired_keys: set[str] = set()
        """Access keys whose session has expired."""
        self.silent_regions: set[str] = set()
        """Regions that are unavailable."""
        self.hanging_regions: set[str] = set()
        """Regions that do not answer."""
        self.interrupted: set[str] = set()
        """Ids of instances that EC2 took back: they have that reason once they have ended."""
        self.calls: list[str] = []
        """Actions, in order."""
        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self._launched: dict[tuple[str, str], tuple[Mapping[str, Any], Response]] = {}
        self._since: dict[str, float] = {}
        self._turn = threading.Lock()
        self._clients: dict[str, EC2Client] = {}

    def failing(self, code: str, status: int = 400) -> str:
        """Returns an address of the same EC2 where launches fail."""
        return f"{self.url}/fail-{code}-{status}"

    def losing_answers(self) -> str:
        """Returns an address of the same EC2 where the responses to launches are lost."""
        return f"{self.url}/lost"

    def client(self, region: str) -> "EC2Client":
        """Returns a client for changes behind the provider's back."""
        if region not in self._clients:
            session = boto3.Session("testing", "testing", region_name=region)
            self._clients[region] = session.client("ec2", endpoint_url=self.url)
        return self._clients[region]

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Handles a request as a WSGI application."""
        request = Request(environ)
        body = request.get_data()
        environ["wsgi.input"] = BytesIO(body)  # moto reads the body again
        parameters = {key: values[0] for key, values in parse_qs(body.decode()).items()}
        action, path = parameters.get("Action", ""), request.path.strip("/")
        self.calls.append(action)
        environ["PATH_INFO"] = "/"
        key, _, region = request.headers.get("Authorization", "").partition("Credential=")[2].split("/")[:3]
        if key in self.expired_keys:
            answer = Response(_ERROR.format(code="RequestExpired", message="Request has expired."), 400)
        elif region in self.silent_regions:
            answer = Response(_ERROR.format(code="Unavailable", message="the region is unavailable"), 503)
        elif action == "RunInstances" and path.startswith("fail-"):
            _, code, status = path.split("-")
            answer = Response(_ERROR.format(code=code, message="made up for a test"), int(status))
        elif action == "RunInstances" and "DryRun" not in parameters:
            answer = self._run(request, parameters)
            if path == "lost":
                answer = Response(_ERROR.format(code="InternalError", message="the answer was lost"), 500)
        elif region in self.hanging_regions:
            while region in self.hanging_regions:
                time.sleep(0.01)
            answer = Response(_ERROR.format(code="Unavailable", message="too late"), 503)
        else:
            answer = Response.from_app(self._moto, environ)
            if action == "DescribeInstances" and self.interrupted:
                answer = self._with_interruptions(answer)
            if action == "DescribeInstances" and self.lag_s:
                answer = self._without_fresh(answer)
        return answer(environ, start_response)

    def _run(self, request: Request, parameters: dict[str, str]) -> Response:
        """Launches once for each client token of a region; repeats the answer for a repeated token."""
        region = request.headers.get("Authorization", "").split("/")[2]
        token = parameters.pop("ClientToken", "")
        with self._turn:
            known = self._launched.get((region, token)) if token and self.has_client_tokens else None
            if known is not None and known[0] != parameters:
                message = "Arguments on this idempotent request are inconsistent with arguments used in previous ones"
                return Response(_ERROR.format(code="IdempotentParameterMismatch", message=message), 400)
            if known is not None:
                return known[1]
            answer = Response.from_app(self._moto, request.environ)
            self._launched[region, token] = parameters, answer
            for element in ElementTree.fromstring(answer.get_data()).iter():  # noqa: S314 (moto wrote it)
                if element.tag.endswith("instanceId") and element.text:
                    self._since[element.text] = time.monotonic()
            return answer

    def _with_interruptions(self, answer: Response) -> Response:
        tree = ElementTree.fromstring(answer.get_data())  # noqa: S314 (moto wrote it)
        space = tree.tag.partition("}")[0] + "}"
        for item in tree.iter(f"{space}item"):
            reason = item.find(f"{space}stateReason")
            if item.findtext(f"{space}instanceId") in self.interrupted and reason is not None:
                for field, value in (("code", "Server.SpotInstanceTermination"), ("message", "taken back")):
                    element = reason.find(f"{space}{field}")
                    element = ElementTree.SubElement(reason, f"{space}{field}") if element is None else element
                    element.text = value
        return Response(ElementTree.tostring(tree), answer.status, mimetype="text/xml")

    def _without_fresh(self, answer: Response) -> Response:
        tree = ElementTree.fromstring(answer.get_data())  # noqa: S314 (moto wrote it)
        space = tree.tag.partition("}")[0] + "}"
        for parent in list(tree.iter(f"{space}instancesSet")):
            for item in list(parent):
                name = item.findtext(f"{space}instanceId") or ""
                if time.monotonic() - self._since.get(name, 0.0) < self.lag_s:
                    parent.remove(item)
        return Response(ElementTree.tostring(tree), answer.status, mimetype="text/xml")


@contextmanager
def serving_ec2() -> Iterator[Ec2Server]:
    """Serves until the block ends. moto keeps its state per process: state of earlier tests is removed first."""
    for of_account in get_backend("ec2").values():
        for region in of_account.values():
            region.reset()
    server = Ec2Server()
    listener = make_server("127.0.0.1", 0, server, threaded=True, request_handler=_Quiet)
    server.url = f"http://127.0.0.1:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, name="ec2-server")
    thread.start()
    try:
        with _shared_service_models():
            yield server
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


@contextmanager
def _shared_service_models() -> Iterator[None]:
    """Lets all sessions share what each would read: the description of EC2 and its endpoints, 200 ms of JSON."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", cache(loaders.create_loader))
        yield


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 (werkzeug's name)
        pass
