"""A simulated SkyPilot API server on loopback, with one cloud behind it: the part of 0.14.1 that the provider uses.

The server answers a request with an id and continues in the background; results come from `/api/get`, failures as HTTP
500 with the error inside; values that SkyPilot pickles are text that the provider must not read. A cluster is a process
of this machine that runs the task's script with its variables. Changes in the cloud behind SkyPilot's back show only
after a `refresh`.
"""

import json
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

Json = dict[str, Any]

TICK_S = 0.01
PICKLED = "gASVFwAAAAAAAACMHHBpY2tsZXMtYXJlLW5ldmVyLWxvYWRlZJQu"
ACTIVE = ("PENDING", "RUNNING")


@dataclass(kw_only=True)
class Request:
    """A request of the server."""

    id: str
    name: str
    body: Json
    status: str = "PENDING"
    at: float = field(default_factory=time.time)
    error: Json | None = None
    value: Any = None


@dataclass(kw_only=True)
class Cluster:
    """A cluster that SkyPilot knows; only its process is real."""

    name: str
    yaml: str
    status: str = "INIT"
    machine: subprocess.Popen[bytes] | None = None
    at: float = field(default_factory=time.time)
    jobs: list[subprocess.Popen[bytes]] = field(default_factory=list)


class FakeSkyPilot:
    """`with FakeSkyPilot(directory) as sky`: it is at `sky.endpoint`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clusters: dict[str, Cluster] = {}
        self.requests: dict[str, Request] = {}
        self.token = ""
        """Required bearer token; empty for none."""
        self.queue_s = 0.0
        """Seconds that a request waits for a worker; meanwhile its cluster is not listed."""
        self.provision_s = 0.02
        self.launch_errors: list[Json] = []
        """`type`, `message`; `leaks`: the cluster remains in INIT."""
        self.down_errors: list[Json] = []
        self.http_faults: list[tuple[str, int, bool]] = []
        """Path, status, whether the request is carried out anyway."""
        self.seen: list[tuple[str, str, str]] = []
        self.lock = threading.RLock()
        self._stop = threading.Event()

    def __enter__(self) -> "FakeSkyPilot":
        self.directory.mkdir(parents=True, exist_ok=True)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._threads = [
            threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}),
            threading.Thread(target=self._work),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()
        for cluster in self.clusters.values():
            self._kill(cluster)

    def lose(self, name: str) -> None:
        """Ends the machine in the cloud's console, without SkyPilot's knowledge."""
        with self.lock:
            self._kill(self.clusters[name])

    def is_leaked(self, name: str) -> bool:
        """Returns whether a machine with that name runs."""
        with self.lock:
            cluster = self.clusters.get(name)
            return cluster is not None and any(job.poll() is None for job in cluster.jobs)

    def answer(self, method: str, target: str, body: bytes, token: str) -> tuple[int, Any, dict[str, str]]:
        """Returns the status, JSON and headers."""
        with self.lock:
            url = urlsplit(target)
            query = parse_qs(url.query)
            self.seen.append((method, target, body.decode()))
            if self.token and token != self.token:
                return 401, {"detail": "Invalid service account token"}, {}
            fault = next((fault for fault in self.http_faults if fault[0] == url.path), None)
            if fault is not None:
                self.http_faults.remove(fault)
                if fault[2]:
                    self._answered(method, url.path, query, json.loads(body or b"{}"))
                return fault[1], {"detail": "the server is not well"}, {}
            return self._answered(method, url.path, query, json.loads(body or b"{}"))

    def _answered(
        self, method: str, path: str, query: dict[str, list[str]], body: Json
    ) -> tuple[int, Any, dict[str, str]]:
        match method, path:
            case "POST", "/launch" | "/down" | "/status" | "/api/cancel":
                names = {"/launch": "sky.launch", "/down": "sky.down", "/status": "sky.status"}
                request = Request(id=str(uuid.uuid4()), name=names.get(path, "sky.api.cancel"), body=body)
                self.requests[request.id] = request
                return 200, None, {"X-Skypilot-Request-ID": request.id}
            case "GET", "/api/get":
                return self._result(self.requests.get(query["request_id"][0]))
            case "GET", "/api/status":
                return 200, self._statuses(query), {}
            case _:
                return 404, {"detail": "Not Found"}, {}

    def _result(self, request: Request | None) -> tuple[int, Any, dict[str, str]]:
        """Returns the result; `-1` makes the handler ask again, as the real server answers only at the end."""
        if request is None:
            return 404, {"detail": "Request not found"}, {}
        if request.status in ACTIVE:
            return -1, None, {}
        error = {**request.error, "object": PICKLED} if request.error else None
        encoded = {
            "request_id": request.id,
            "name": request.name,
            "entrypoint": PICKLED,
            "request_body": PICKLED,
            "status": request.status,
            "created_at": request.at,
            "return_value": json.dumps(request.value),
            "error": json.dumps(error),
            "cluster_name": request.body.get("cluster_name"),
        }
        return (500, {"detail": encoded}, {}) if error else (200, encoded, {})

    def _statuses(self, query: dict[str, list[str]]) -> list[Json]:
        wanted = query.get("cluster_name", [None])[0]
        shown = [
            request
            for request in sorted(self.requests.values(), key=lambda request: request.at, reverse=True)
            if wanted in (None, request.body.get("cluster_name"))
            and (request.status in ACTIVE or query.get("all_status") == ["true"])
        ]
        return [
            {
                "request_id": request.id,
                "name": request.name,
                "request_body": json.dumps(request.body),
                "status": request.status,
                "created_at": request.at,
                "cluster_name": request.body.get("cluster_name"),
                "return_value": "null",
                "error": "null",
            }
            for request in shown[: int(query.get("limit", ["1000"])[0])]
        ]

    def _work(self) -> None:
        while not self._stop.wait(TICK_S):
            with self.lock:
                for request in [request for request in self.requests.values() if request.status in ACTIVE]:
                    self._advance(request)
                for cluster in list(self.clusters.values()):
                    self._autodown(cluster)

    def _advance(self, request: Request) -> None:
        steps: dict[str, Callable[[Request], None]] = {
            "sky.launch": self._launch,
            "sky.down": self._down,
            "sky.status": self._status,
            "sky.api.cancel": self._cancel,
        }
        if request.name == "sky.launch" and time.time() < request.at + self.queue_s:
            return
        request.status = "RUNNING"
        steps[request.name](request)

    def _finish(self, request: Request, value: Any = None, error: Json | None = None) -> None:
        request.status, request.value, request.error = ("FAILED" if error else "SUCCEEDED"), value, error

    def _launch(self, request: Request) -> None:
        name = request.body["cluster_name"]
        task = yaml.safe_load(request.body["task"])
        known = self.clusters.get(name)
        if self.launch_errors:
            error = self.launch_errors.pop(0)
            if error.pop("leaks", False):
                self.clusters[name] = self._made(name, task)
                self._run(self.clusters[name], task)
            self._finish(request, error=error)
        elif request.body.get("dryrun"):
            self._finish(request)
        elif known is None:
            self.clusters[name] = self._made(name, task)
        elif known.status == "UP":  # another job on the same machine
            self._run(known, task)
            self._finish(request, {"job_id": len(known.jobs), "handle": PICKLED})
        elif time.time() >= known.at + self.provision_s:
            known.status = "UP"
            self._run(known, task)
            self._finish(request, {"job_id": 1, "handle": PICKLED})

    def _made(self, name: str, task: Json) -> Cluster:
        redacted = {**task, "secrets": dict.fromkeys(task.get("secrets", {}), "<redacted>")}
        return Cluster(name=name, yaml=yaml.safe_dump(redacted))

    def _run(self, cluster: Cluster, task: Json) -> None:
        home = self.directory / cluster.name
        home.mkdir(exist_ok=True)
        forwarded_variables = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
        with (self.directory / f"{cluster.name}.log").open("ab") as log:
            job = subprocess.Popen(
                ["bash", "-c", task["run"]],
                env={**forwarded_variables, "HOME": str(home), **task["envs"], **task["secrets"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        cluster.jobs.append(job)

    def _autodown(self, cluster: Cluster) -> None:
        """Ends an idle cluster at once, without the idle minutes."""
        jobs_end = cluster.jobs and all(job.poll() is not None for job in cluster.jobs)
        ended_well = jobs_end and all(job.returncode >= 0 for job in cluster.jobs)
        if cluster.status == "UP" and ended_well:
            del self.clusters[cluster.name]

    def _down(self, request: Request) -> None:
        cluster = self.clusters.get(request.body["cluster_name"])
        if cluster is None:
            name = request.body["cluster_name"]
            self._finish(request, error={"type": "ClusterDoesNotExist", "message": f"Cluster {name!r} does not exist."})
        elif self.down_errors:
            self._finish(request, error=self.down_errors.pop(0))
        else:
            self._kill(cluster)
            del self.clusters[cluster.name]
            self._finish(request)

    def _status(self, request: Request) -> None:
        names = request.body["cluster_names"]
        if request.body["refresh"] != "NONE":
            for cluster in list(self.clusters.values()):
                is_dead = cluster.jobs and not any(job.poll() is None for job in cluster.jobs)
                if is_dead and (names is None or cluster.name in names):
                    del self.clusters[cluster.name]  # the cloud has ended it
        shown = [cluster for cluster in self.clusters.values() if names is None or cluster.name in names]
        self._finish(request, [self._record(request) for request in shown])

    def _record(self, cluster: Cluster) -> Json:
        return {
            "name": cluster.name,
            "launched_at": int(cluster.at),
            "handle": PICKLED,
            "status": cluster.status,
            "autostop": 5,
            "to_down": True,
            "last_creation_yaml": cluster.yaml,
            "labels": {},
            "nodes": 1,
        }

    def _cancel(self, request: Request) -> None:
        for request_id in request.body["request_ids"]:
            if request_id in self.requests and self.requests[request_id].status in ACTIVE:
                self.requests[request_id].status = "CANCELLED"
        self._finish(request, request.body["request_ids"])

    def _kill(self, cluster: Cluster) -> None:
        for job in cluster.jobs:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def _handler(sky: FakeSkyPilot) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 5  # closes idle connections

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            while True:
                status, answer, headers = sky.answer(self.command, self.path, body, token)
                if status != -1 or sky._stop.is_set():
                    break
                time.sleep(TICK_S)
            payload = json.dumps(answer).encode()
            self.send_response(status if status != -1 else 503)
            for key, value in {
                **headers,
                "Content-Type": "application/json",
                "Content-Length": str(len(payload)),
            }.items():
                self.send_header(key, value)
            self.end_headers()
            with suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(payload)

        do_GET = do_POST = _serve  # noqa: N815 (the library looks for these)

        def log_message(self, *_: object) -> None:
            """Logs nothing: requests are in `seen`."""

    return Handler
