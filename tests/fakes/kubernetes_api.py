"""A simulated Kubernetes API server on loopback, with a scheduler, a kubelet and a garbage collector behind it.

It speaks the real protocol over real HTTP to the real client: it refuses unknown fields (`fieldValidation=Strict`) and
duplicate names, pages lists from one snapshot that may expire, deletes pods with grace and secrets with their owners,
and checks the roles of bearer tokens. A scheduled pod runs: its command is a process of this machine, with the
environment that its spec and its secrets give it. Volumes, networks and images are not real: an image exists unless it
is in `missing_images`.

Source: https://kubernetes.io/docs/reference/using-api/api-concepts/, the pod lifecycle, garbage collection, RBAC.
"""

import base64
import json
import os
import re
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

Json = dict[str, Any]

TICK_S = 0.01
KINDS: dict[str, type[Any]] = {
    "pods": client.V1Pod,
    "secrets": client.V1Secret,
    "configmaps": client.V1ConfigMap,
    "jobs": client.V1Job,
    "services": client.V1Service,
    "serviceaccounts": client.V1ServiceAccount,
    "persistentvolumeclaims": client.V1PersistentVolumeClaim,
    "namespaces": client.V1Namespace,
    "podtemplates": client.V1PodTemplate,
    "deployments": client.V1Deployment,
    "statefulsets": client.V1StatefulSet,
    "roles": client.V1Role,
    "rolebindings": client.V1RoleBinding,
    "networkpolicies": client.V1NetworkPolicy,
    "resourcequotas": client.V1ResourceQuota,
}
"""Supported resources, with the schema of each."""

_PATH = re.compile(r"/(?:api/v1|apis/(?P<group>[^/]+)/v1)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<rest>.+)")
_DNS = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


@dataclass(kw_only=True)
class Machine:
    """A node of the cluster."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taint: str = ""
    """A key, with effect NoSchedule."""
    allocatable: Mapping[str, int] = field(default_factory=dict)
    """Only countable resources: `{"nvidia.com/gpu": 1}`."""


@dataclass(kw_only=True)
class Fault:
    """Fault of the next request to a resource."""

    method: str
    resource: str
    status: int
    reason: str = ""
    message: str = ""
    is_after: bool = False
    """The server carries out the request and then loses the answer."""


class ApiRefusal(Exception):
    """An error status."""

    def __init__(self, code: int, reason: str, message: str, **extra: Any) -> None:
        super().__init__(message)
        self.code = code
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message,
            **extra,
        }


class FakeCluster:
    """One cluster. `with FakeCluster(directory) as cluster`: its kubeconfig is `cluster.kubeconfig`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.objects: dict[tuple[str, str, str], Json] = {}
        """Objects by resource, namespace and name."""
        self.machines = [Machine(name="node-1"), Machine(name="node-spot", labels={"life": "spot"}, taint="spot")]
        self.missing_images: set[str] = set()
        self.pod_quota: int | None = None
        self.queues: dict[str, int] = {}
        """Kueue's queues: pods that a queue admits at once."""
        self.roles: dict[str, list[Json]] = {"admin": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}
        """Rules of each bearer token."""
        self.faults: list[Fault] = []
        self.expire_lists = 0
        """Number of lists whose continuation has expired at the next request."""
        self.seen: list[tuple[str, str, str]] = []
        """Method, path with query, and body of every request."""
        self.lock = threading.RLock()
        self._version = 100
        self._snapshots: dict[str, list[Json]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._kill_at: dict[str, float] = {}
        self._stop = threading.Event()

    def __enter__(self) -> "FakeCluster":
        self.directory.mkdir(parents=True, exist_ok=True)
        self.put("namespaces", "", {"metadata": {"name": "default"}})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._threads = [
            threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}),
            threading.Thread(target=self._work),
        ]
        for thread in self._threads:
            thread.start()
        self.kubeconfig = self.write_kubeconfig("admin")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def write_kubeconfig(self, token: str) -> Path:
        """Writes the kubeconfig for a bearer token."""
        path = self.directory / f"kubeconfig-{token}"
        address = f"http://127.0.0.1:{self._server.server_address[1]}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": address}}],
            "users": [{"name": "fake", "user": {"token": token}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": "default"}}],
        }
        path.write_text(json.dumps(config))
        return path

    def put(self, resource: str, namespace: str, manifest: Json) -> Json:
        """Stores an object with the defaults that the server adds."""
        metadata = manifest.setdefault("metadata", {})
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp(time.time())}
        metadata |= {"namespace": namespace} if namespace else {}
        self.touch(manifest)
        self.objects[resource, namespace, metadata["name"]] = manifest
        return manifest

    def touch(self, manifest: Json) -> None:
        """Gives the object a new resource version."""
        self._version += 1
        manifest["metadata"]["resourceVersion"] = str(self._version)

    def pods(self, **labels: str) -> list[Json]:
        """Returns the pods with these labels; `_` in a key stands for `/`."""
        wanted = {key.replace("_", "/", 1): value for key, value in labels.items()}
        with self.lock:
            pods = [pod for (resource, _, _), pod in self.objects.items() if resource == "pods"]
            return [pod for pod in pods if wanted.items() <= (pod["metadata"].get("labels") or {}).items()]

    def pod_log(self, name: str) -> str:
        """Returns the output of the pod's process."""
        return (self.directory / f"{name}.log").read_text()

    def lose(self, pod: Json) -> None:
        """Deletes the pod at once, as `kubectl delete --force --grace-period=0` or the loss of its machine does."""
        with self.lock:
            self._end(pod)

    def disrupt(self, pod: Json, *, grace_s: float) -> None:
        """Shuts the pod's machine down: marks the pod as disrupted and deletes it with grace."""
        with self.lock:
            set_condition(pod, "DisruptionTarget", "True", "TerminationByKubelet", "the machine shuts down")
            self._delete_gracefully(pod, grace_s)

    def _end(self, pod: Json) -> None:
        """Ends the process at once, and deletes the object with everything that it owns."""
        process = self._processes.pop(pod["metadata"]["uid"], None)
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._remove("pods", pod)

    def _remove(self, resource: str, manifest: Json) -> None:
        metadata = manifest["metadata"]
        self.objects.pop((resource, metadata.get("namespace", ""), metadata["name"]), None)
        for (kind, _, _), other in list(self.objects.items()):
            owners = other["metadata"].get("ownerReferences") or ()
            if any(owner["uid"] == metadata["uid"] for owner in owners):
                self._remove(kind, other)

    def _delete_gracefully(self, pod: Json, grace_s: float) -> None:
        if pod["metadata"]["uid"] not in self._processes:
            self._end(pod)
            return
        ends_at = time.time() + grace_s
        if "deletionTimestamp" in pod["metadata"] and self._kill_at[pod["metadata"]["uid"]] <= ends_at:
            return
        pod["metadata"]["deletionTimestamp"] = stamp(ends_at)
        pod["metadata"]["deletionGracePeriodSeconds"] = int(grace_s)
        self.touch(pod)
        self._kill_at[pod["metadata"]["uid"]] = ends_at
        with suppress(ProcessLookupError):
            os.kill(self._processes[pod["metadata"]["uid"]].pid, signal.SIGTERM)

    # Requests

    def answer(self, method: str, target: str, body: bytes, token: str) -> tuple[int, Json]:
        """Returns the status and the object that answer a request."""
        with self.lock:
            self.seen.append((method, target, body.decode()))
            try:
                return 200 if method != "POST" else 201, self._answered(method, target, body, token)
            except ApiRefusal as refused:
                return refused.code, refused.body

    def _answered(self, method: str, target: str, body: bytes, token: str) -> Json:
        url = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        path_match = _PATH.fullmatch(url.path)
        resource, _, name = path_match["rest"].partition("/") if path_match else ("", "", "")
        if path_match is None or resource not in KINDS:
            raise ApiRefusal(404, "NotFound", "the server could not find the requested resource")
        self._authorise(token, method, path_match["group"] or "", resource, is_one=bool(name))
        fault = self._fault(method, resource)
        if fault is not None and not fault.is_after:
            raise ApiRefusal(fault.status, fault.reason, fault.message)
        answer = self._done(method, resource, path_match["namespace"] or "", name, query, json.loads(body or b"{}"))
        if fault is not None:
            raise ApiRefusal(fault.status, fault.reason, fault.message)
        return answer

    def _authorise(self, token: str, method: str, group: str, resource: str, *, is_one: bool) -> None:
        if token not in self.roles:
            raise ApiRefusal(401, "Unauthorized", "Unauthorized")
        verb = {"GET": "get" if is_one else "list", "POST": "create", "PUT": "update"}.get(method, method.lower())
        for rule in self.roles[token]:
            required = (("apiGroups", group), ("resources", resource), ("verbs", verb))
            if all({value, "*"} & set(rule[key]) for key, value in required):
                return
        raise ApiRefusal(
            403, "Forbidden", f'{resource} is forbidden: User "{token}" cannot {verb} resource "{resource}"'
        )

    def _fault(self, method: str, resource: str) -> Fault | None:
        for fault in self.faults:
            if (fault.method, fault.resource) == (method, resource):
                self.faults.remove(fault)
                return fault
        return None

    def _done(self, method: str, resource: str, namespace: str, name: str, query: Json, body: Json) -> Json:
        if method == "POST":
            return self._create(resource, namespace, body, is_dry=query.get("dryRun") == "All")
        if method == "GET" and not name:
            return self._list(resource, namespace, query)
        manifest = self.objects.get((resource, namespace, name))
        if manifest is None:
            raise ApiRefusal(404, "NotFound", f'{resource} "{name}" not found')
        match method:
            case "GET":
                return manifest
            case "DELETE":
                return self._delete(resource, manifest, {**query, **body})
            case "PATCH":
                return self._patch(manifest, body)
            case _:
                raise ApiRefusal(
                    405, "MethodNotAllowed", "the server does not allow this method on the requested resource"
                )

    def _create(self, resource: str, namespace: str, body: Json, *, is_dry: bool) -> Json:
        if namespace and ("namespaces", "", namespace) not in self.objects:
            raise ApiRefusal(404, "NotFound", f'namespaces "{namespace}" not found')
        check_fields(resource, body)
        name = body["metadata"].get("name", "")
        if not _DNS.fullmatch(name):
            raise ApiRefusal(422, "Invalid", f'{resource} "{name}" is invalid: metadata.name: Invalid value')
        for key, value in (body["metadata"].get("labels") or {}).items():
            if not _LABEL.fullmatch(value):
                raise ApiRefusal(422, "Invalid", f'metadata.labels: Invalid value: "{value}" of {key}')
        if (resource, namespace, name) in self.objects:
            raise ApiRefusal(409, "AlreadyExists", f'{resource} "{name}" already exists')
        if resource == "secrets":
            plain = body.pop("stringData", {})
            coded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
            body["data"] = {**(body.get("data") or {}), **coded}
        if resource == "pods":
            self._admit(body, namespace)
        if is_dry:  # completed like any other object, but not stored
            body["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp(time.time())}
            return body
        return self.put(resource, namespace, body)

    def _admit(self, pod: Json, namespace: str) -> None:
        used = sum(1 for pod in self.pods() if pod["metadata"]["namespace"] == namespace and not is_over(pod))
        if self.pod_quota is not None and used >= self.pod_quota:
            name, limit = pod["metadata"]["name"], self.pod_quota
            message = f"exceeded quota: pods, requested: pods=1, used: pods={used}, limited: pods={limit}"
            raise ApiRefusal(403, "Forbidden", f'pods "{name}" is forbidden: {message}')
        pod["spec"].setdefault("terminationGracePeriodSeconds", 30)
        pod["status"] = {"phase": "Pending", "conditions": []}
        if (pod["metadata"].get("labels") or {}).get("kueue.x-k8s.io/queue-name") in self.queues:
            pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
            set_condition(
                pod,
                "PodScheduled",
                "False",
                "SchedulingGated",
                "Scheduling is blocked due to non-empty scheduling gates",
            )

    def _list(self, resource: str, namespace: str, query: Json) -> Json:
        limit, selector = int(query.get("limit", 0)), query.get("labelSelector", "")
        if "continue" in query:
            if self.expire_lists or query["continue"] not in self._snapshots:
                self.expire_lists = max(0, self.expire_lists - 1)
                raise ApiRefusal(410, "Expired", "The provided continue parameter is too old", metadata={})
            items = self._snapshots.pop(query["continue"])
        else:
            wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
            items = [
                json.loads(json.dumps(manifest))  # a list shows one snapshot
                for (kind, object_namespace, _), manifest in sorted(self.objects.items())
                if kind == resource
                and object_namespace == namespace
                and wanted.items() <= (manifest["metadata"].get("labels") or {}).items()
            ]
        metadata: Json = {"resourceVersion": str(self._version)}
        if limit and len(items) > limit:
            metadata["continue"] = str(uuid.uuid4())
            metadata["remainingItemCount"] = len(items) - limit
            self._snapshots[metadata["continue"]], items = items[limit:], items[:limit]
        return {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}

    def _delete(self, resource: str, manifest: Json, options: Json) -> Json:
        uid = (options.get("preconditions") or {}).get("uid")
        if uid is not None and uid != manifest["metadata"]["uid"]:
            raise ApiRefusal(409, "Conflict", "Precondition failed: UID in precondition differs")
        if resource == "pods":
            grace_s = options.get("gracePeriodSeconds", manifest["spec"]["terminationGracePeriodSeconds"])
            self._delete_gracefully(manifest, float(grace_s))
            return manifest
        self._remove(resource, manifest)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def _patch(self, manifest: Json, patch: Json) -> Json:
        version = (patch.get("metadata") or {}).get("resourceVersion")
        if version is not None and version != manifest["metadata"]["resourceVersion"]:
            raise ApiRefusal(
                409, "Conflict", "the object has been modified; please apply your changes to the latest version"
            )
        merge(manifest, patch)
        self.touch(manifest)
        return manifest

    # Controllers behind the API

    def _work(self) -> None:
        """Runs the scheduler, the kubelet and Kueue until the end."""
        while not self._stop.wait(TICK_S):
            with self.lock:
                for pod in self.pods():
                    if not is_over(pod):
                        self._advance(pod)

    def _advance(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._processes:
            self._watch(pod, self._processes[uid])
        elif pod["spec"].get("schedulingGates"):
            self._ungate(pod)
        elif "nodeName" not in pod["spec"]:
            self._schedule(pod)
        else:
            self._start(pod)

    def _ungate(self, pod: Json) -> None:
        queue = pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
        inside = [pod for pod in self.pods(**{"kueue.x-k8s.io_queue-name": queue}) if not is_over(pod)]
        if sum(1 for pod in inside if not pod["spec"].get("schedulingGates")) < self.queues[queue]:
            del pod["spec"]["schedulingGates"]
            pod["status"]["conditions"] = []
            self.touch(pod)

    def _schedule(self, pod: Json) -> None:
        fitting = [machine for machine in self.machines if self._fits(pod, machine)]
        if fitting:
            pod["spec"]["nodeName"] = fitting[0].name
            set_condition(pod, "PodScheduled", "True", "", "")
            self.touch(pod)
        elif not pod["status"]["conditions"]:
            message = f"0/{len(self.machines)} nodes are available: no machine has what it asks for."
            set_condition(pod, "PodScheduled", "False", "Unschedulable", message)
            self.touch(pod)

    def _fits(self, pod: Json, machine: Machine) -> bool:
        spec = pod["spec"]
        if not (spec.get("nodeSelector") or {}).items() <= machine.labels.items():
            return False
        tolerated = {toleration.get("key") for toleration in spec.get("tolerations") or ()}
        if machine.taint and machine.taint not in tolerated:
            return False
        here = [pod for pod in self.pods() if pod["spec"].get("nodeName") == machine.name and not is_over(pod)]
        return all(
            sum(wanted(pod_or_peer, what) for pod_or_peer in [*here, pod]) <= room
            for what, room in machine.allocatable.items()
        )

    def _start(self, pod: Json) -> None:
        container, name = pod["spec"]["containers"][0], pod["metadata"]["name"]
        pod["status"].setdefault("startTime", stamp(time.time()))
        if container["image"] in self.missing_images:
            self._wait(pod, "ImagePullBackOff", f'Back-off pulling image "{container["image"]}"')
            return
        try:
            environment = self._environment(pod, container)
        except KeyError as problem:
            self._wait(pod, "CreateContainerConfigError", f"secret {problem} not found")
            return
        argv = [*container.get("command", ()), *container.get("args", ())]
        try:
            with (self.directory / f"{name}.log").open("ab") as log:
                process = subprocess.Popen(
                    argv, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as problem:
            self._fail_to_start(pod, str(problem))
            return
        self._processes[pod["metadata"]["uid"]] = process
        pod["status"]["phase"] = "Running"
        self._set_state(pod, {"running": {"startedAt": stamp(time.time())}})

    def _environment(self, pod: Json, container: Json) -> dict[str, str]:
        """Returns only the environment of the spec, besides the default environment of a container."""
        environment = {key: os.environ[key] for key in ("PATH", "HOME", "PYTHONPATH") if key in os.environ}
        for variable in container.get("env") or ():
            if "value" in variable:
                environment[variable["name"]] = variable["value"]
            else:
                reference = variable["valueFrom"]["secretKeyRef"]
                secret = self.objects["secrets", pod["metadata"]["namespace"], reference["name"]]
                environment[variable["name"]] = base64.b64decode(secret["data"][reference["key"]]).decode()
        return environment

    def _watch(self, pod: Json, process: subprocess.Popen[bytes]) -> None:
        uid, code = pod["metadata"]["uid"], process.poll()
        if code is not None:
            del self._processes[uid]
            if "deletionTimestamp" in pod["metadata"]:
                self._remove("pods", pod)
            else:
                self._finish(pod, code)
        elif uid in self._kill_at and time.time() >= self._kill_at[uid]:
            os.killpg(process.pid, signal.SIGKILL)
        elif time.time() - seconds(pod["status"]["startTime"]) > pod["spec"].get("activeDeadlineSeconds", 2**31):
            pod["status"] |= {"reason": "DeadlineExceeded", "message": "Pod was active longer than specified deadline"}
            os.kill(process.pid, signal.SIGTERM)

    def _finish(self, pod: Json, code: int) -> None:
        shown = 128 - code if code < 0 else code
        pod["status"]["phase"] = "Succeeded" if code == 0 and "reason" not in pod["status"] else "Failed"
        ended = {"exitCode": shown, "reason": "Completed" if code == 0 else "Error", "finishedAt": stamp(time.time())}
        self._set_state(pod, {"terminated": ended})

    def _fail_to_start(self, pod: Json, message: str) -> None:
        pod["status"]["phase"] = "Failed"
        ended = {"exitCode": 128, "reason": "StartError", "message": message, "finishedAt": stamp(time.time())}
        self._set_state(pod, {"terminated": ended})

    def _wait(self, pod: Json, reason: str, message: str) -> None:
        self._set_state(pod, {"waiting": {"reason": reason, "message": message}})

    def _set_state(self, pod: Json, state: Json) -> None:
        statuses = [{"name": pod["spec"]["containers"][0]["name"], "state": state}]
        if pod["status"].get("containerStatuses") != statuses:
            pod["status"]["containerStatuses"] = statuses
            self.touch(pod)


def check_fields(resource: str, body: Json) -> None:
    """Refuses fields that the schema of the resource lacks, as `fieldValidation=Strict` does."""
    try:
        understood = json.loads(KINDS[resource].from_dict(body).to_json())
    except ValueError as problem:
        raise ApiRefusal(422, "Invalid", f"{resource} is invalid: {problem}") from None
    for path in lost(body, understood):
        raise ApiRefusal(400, "BadRequest", f'strict decoding error: unknown field "{path}"')


def lost(sent: Any, understood: Any, path: str = "") -> list[str]:
    """Returns the paths of given fields that the schema lacks."""
    if isinstance(sent, dict) and isinstance(understood, dict):
        unknown_fields = [
            f"{path}.{key}" for key, value in sent.items() if key not in understood and value not in (None, {}, [])
        ]
        inside = [lost(value, understood[key], f"{path}.{key}") for key, value in sent.items() if key in understood]
        return [*unknown_fields, *(difference for nested in inside for difference in nested)]
    if isinstance(sent, list) and isinstance(understood, list):
        pairs = zip(sent, understood, strict=True)
        return [difference for number, pair in enumerate(pairs) for difference in lost(*pair, f"{path}[{number}]")]
    return []


def is_over(pod: Json) -> bool:
    """Returns whether all its containers have ended for good."""
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def set_condition(pod: Json, kind: str, status: str, reason: str, message: str) -> None:
    """Replaces the condition of this type."""
    others = [condition for condition in pod["status"]["conditions"] if condition["type"] != kind]
    now = stamp(time.time())
    condition = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}
    pod["status"]["conditions"] = [*others, condition]


def wanted(pod: Json, resource: str) -> int:
    """Returns the amount of a counted resource that a pod requests."""
    return sum(
        int((container.get("resources") or {}).get("limits", {}).get(resource, 0))
        for container in pod["spec"]["containers"]
    )


def merge(target: Json, patch: Json) -> None:
    """Merges a patch by RFC 7386."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = value


def stamp(at: float) -> str:
    """Formats a time as Kubernetes does: whole seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(written: str) -> float:
    """Parses a time that `stamp` wrote."""
    return datetime.fromisoformat(written).timestamp()


def _handler(cluster: FakeCluster) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 5  # closes idle connections

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            status, answer = cluster.answer(self.command, self.path, body, token)
            payload = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _serve  # noqa: N815 (the library looks for these)

        def log_message(self, *_: object) -> None:
            """Logs nothing: requests are in `seen`."""

    return Handler
