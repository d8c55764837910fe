"""Runner of terminal tasks in pods of a Kubernetes cluster, by the command line `kubectl`."""

import base64
import json
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from astraflow.contract.errors import InternalError, InvalidInput, Unavailable
from astraflow.datasets.worlds.terminal import TerminalTask, files_below
from astraflow.environments.container_engine import (
    ARCHIVE_BYTES,
    COMMAND_S,
    GRACE_S,
    OUTPUT_BYTES,
    ContainerEngine,
    out_of_resources,
    stopped_command,
    with_timeout,
)
from astraflow.environments.terminal.containers import ContainerSession
from astraflow.environments.terminal.runners import Judge, archive_of
from astraflow.sandbox.base import JobResult, Outcome, SandboxError

NETWORK_POLICY = "astraflow-terminal"
"""Name of the NetworkPolicy that blocks all traffic of the pods; `deploy/kubernetes/terminal.yaml` defines it."""
_ROLE = "astraflow-terminal"
"""Label of the pods, which the NetworkPolicy selects."""
_REASONS = "{.status.reason} {.status.containerStatuses[*].state.terminated.reason}"
_USED_UP = re.compile(r"\b(?:Evicted|OOMKilled)\b")
"""Reasons of the cluster for ending a pod that used up its memory or disk."""
_ENDED = "command terminated with exit code"
"""Line of `kubectl exec` for a command with an exit status other than 0; without it, the pod did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """Namespace and limits of the pods."""

    namespace: str
    """Namespace of the pods; empty: the namespace of the node's kubectl configuration."""
    runtime_class: str
    """RuntimeClass, such as gVisor's; empty: the cluster's default."""
    lifetime_s: float
    """Time after which the cluster ends a pod, even if the node that created it was lost. Seconds."""
    has_network: bool
    capabilities: tuple[str, ...] = ()
    """Linux capabilities of root in the pods; it has no others."""


class KubernetesRunner:
    """Runs each episode in its own pod, without the token of a service account. Images are not built: a task names an
    image that the cluster can pull. The working directory stays the same from one command to the next; shell variables
    are lost."""

    def __init__(self, options: PodOptions) -> None:
        self._options = options
        self._kubectl = ContainerEngine("kubectl")
        self._judge = Judge()

    def open(self, task: TerminalTask) -> AbstractAsyncContextManager[ContainerSession]:
        """Starts a pod. Raises: InvalidInput for a task without an image, with several steps, services or
        separate tests."""
        if len(task.steps) > 1 or task.is_separate or task.services:
            raise InvalidInput(
                f"cannot run the terminal task {task.name!r} on Kubernetes: it has several steps, services, or "
                "separate tests; use docker or podman",
                code="environment.needs_container",
            )
        if not task.image:
            raise InvalidInput(
                f"cannot run the terminal task {task.name!r} on Kubernetes: it names no image; build its environment, "
                "push the image, and set docker_image under [environment] in its task.toml",
                code="environment.needs_image",
            )
        return self._opened(task)

    async def check(self) -> None:
        """Checks that the cluster answers and that its pods have no network. Raises: InvalidInput, Unavailable."""
        if shutil.which("kubectl") is None:
            raise InvalidInput(
                "cannot use pods: the program 'kubectl' is not installed; install it, or use another runner",
                code="environment.no_container_engine",
            )
        result = await self._call("auth", "can-i", "create", "pods", "--subresource=exec")
        if result.outcome is not Outcome.PASSED:
            raise Unavailable(
                f"cannot use pods: kubectl answers {(result.stderr or result.stdout).strip()[-300:]!r}; give the node "
                "a role as in deploy/kubernetes/terminal.yaml",
                code="environment.container_engine_failed",
            )
        if self._options.has_network:
            return
        policy = await self._call("get", "networkpolicy", NETWORK_POLICY, "--output=name")
        if policy.outcome is not Outcome.PASSED:
            raise InvalidInput(
                f"cannot use pods without network: the namespace has no NetworkPolicy {NETWORK_POLICY!r} "
                f"({policy.stderr.strip()[-300:]}); apply deploy/kubernetes/terminal.yaml, or set has_network = true",
                code="environment.no_network_policy",
            )

    @asynccontextmanager
    async def _opened(self, task: TerminalTask) -> AsyncIterator[ContainerSession]:
        async with self._pod_of(task) as pod:
            yield await ContainerSession.begun(pod, task, self._judge, lambda: self._pod_of(task))

    @asynccontextmanager
    async def _pod_of(self, task: TerminalTask) -> AsyncIterator["Pod"]:
        created = await self._done("create", "--filename=-", "--output=name", stdin=json.dumps(self._pod(task)))
        name = created.stdout.strip().removeprefix("pod/")
        try:
            limit = f"--timeout={task.build_s:g}s"
            await self._done("wait", "--for=condition=Ready", f"pod/{name}", limit, timeout_s=task.build_s + GRACE_S)
            yield Pod(self, name)
        finally:
            await self._call("delete", f"pod/{name}", "--grace-period=1", "--wait=false", "--ignore-not-found")

    async def execute(
        self,
        pod: str,
        command: tuple[str, ...],
        *,
        timeout_s: float,
        stdin: str | IO[bytes] = "",
        stdout: IO[bytes] | None = None,
    ) -> JobResult:
        """Runs a command in a pod. stdout: file for at most `ARCHIVE_BYTES` of its output. Raises: SandboxError when
        the pod does not answer."""
        interactive = ("--stdin",) if stdin else ()
        result = await self._call(
            "exec", *interactive, pod, "--", *stopped_command(command, timeout_s),
            timeout_s=timeout_s + GRACE_S, stdin=stdin, stdout=stdout,
        )  # fmt: skip
        *lines, last = result.stderr.rstrip("\n").rsplit("\n", 1)
        if result.outcome is Outcome.FAILED and not last.startswith(_ENDED):
            reason = await self._call("get", "pod", pod, f"--output=jsonpath={_REASONS}")
            if _USED_UP.search(reason.stdout):
                raise out_of_resources(reason.stdout[:200])
            raise _failed("exec", result)
        shown = replace(result, stderr="\n".join(lines)) if last.startswith(_ENDED) else result
        return with_timeout(shown, timeout_s)

    async def _done(self, *arguments: str, stdin: str = "", timeout_s: float = COMMAND_S) -> JobResult:
        result = await self._call(*arguments, stdin=stdin, timeout_s=timeout_s)
        if result.outcome is not Outcome.PASSED:
            raise _failed(arguments[0], result)
        return result

    async def _call(
        self,
        *arguments: str,
        stdin: str | IO[bytes] = "",
        stdout: IO[bytes] | None = None,
        timeout_s: float = COMMAND_S,
    ) -> JobResult:
        options = (f"--namespace={self._options.namespace}",) if self._options.namespace else ()
        output_bytes = OUTPUT_BYTES if stdout is None else ARCHIVE_BYTES
        return await self._kubectl.call(
            *options, *arguments, timeout_s=timeout_s, stdin=stdin, stdout=stdout, output_bytes=output_bytes
        )

    def _pod(self, task: TerminalTask) -> Mapping[str, Any]:
        size = {"cpu": f"{task.cpus:g}", "memory": str(task.memory_bytes)}
        container = {
            "name": "task",
            "image": task.image,
            "command": ["sleep", "infinity"],
            "resources": {"requests": size, "limits": {**size, "ephemeral-storage": str(task.storage_bytes)}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"], "add": list(self._options.capabilities)},
                "privileged": False,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
        runtime = {"runtimeClassName": self._options.runtime_class} if self._options.runtime_class else {}
        labels = {"app.kubernetes.io/managed-by": "astraflow"} | (
            {} if self._options.has_network else {"astraflow.io/network": _ROLE}
        )
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "astraflow-terminal-", "labels": labels},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "activeDeadlineSeconds": int(self._options.lifetime_s),
                "containers": [container],
                **runtime,
            },
        }


class Pod:
    """Running pod."""

    def __init__(self, runner: KubernetesRunner, name: str) -> None:
        self._runner = runner
        self._name = name

    async def execute(self, *command: str, timeout_s: float) -> JobResult:
        """Runs a command in the pod, which stops it after `timeout_s`. Raises: SandboxError when the pod does not
        answer."""
        return await self._runner.execute(self._name, command, timeout_s=timeout_s)

    async def make_folders(self, *paths: str) -> JobResult:
        """Makes folders."""
        return await self.execute("mkdir", "-p", *paths, timeout_s=COMMAND_S)

    async def copy_folder(self, source: Path, target: str) -> JobResult:
        """Copies the files of a folder of this machine into a folder of the pod, which exists."""
        packed = base64.b64encode(archive_of(files_below(source.parent, source.name))).decode()
        unpack = ("sh", "-c", f"base64 -d | tar -xf - -C {target} --no-same-owner")
        return await self._runner.execute(self._name, unpack, timeout_s=COMMAND_S, stdin=packed)

    async def end(self) -> None:
        """Leaves the pod as it is: one that is stopped has no files. The tests run in another pod, whose supervisor
        has ended what they started."""

    async def freeze(self) -> None:
        """A pod cannot be suspended. Raises: InternalError."""
        raise InternalError("cannot suspend a pod: its cluster has no such call", code="environment.no_freeze")

    async def thaw(self) -> None:
        """A pod is never suspended. Raises: InternalError."""
        raise InternalError("cannot continue a pod: it was not suspended", code="environment.no_freeze")

    async def pack(self, path: str, target: IO[bytes]) -> bool:
        """Writes a folder of the pod to an archive; returns whether its `tar` did and it is not too large."""
        command = ("tar", "-cf", "-", "-C", path, ".")
        packed = await self._runner.execute(self._name, command, timeout_s=COMMAND_S, stdout=target)
        return packed.outcome is Outcome.PASSED and not packed.is_output_cut

    async def unpack(self, source: IO[bytes], path: str) -> bool:
        """Fills the folder `path` from an archive, which the policy may have written; returns whether that worked."""
        command = ("tar", "-xpf", "-", "-C", path)
        unpacked = await self._runner.execute(self._name, command, timeout_s=COMMAND_S, stdin=source)
        return unpacked.outcome is Outcome.PASSED

    async def text(self, path: str) -> str:
        """Returns the begin of a file of the pod; empty without one."""
        read = await self.execute("head", "-c", "256", path, timeout_s=COMMAND_S)
        return read.stdout if read.outcome is Outcome.PASSED else ""


def _failed(verb: str, result: JobResult) -> SandboxError:
    return SandboxError(
        f"cannot use a pod: kubectl {verb} ended with {result.outcome.value}: {result.stderr.strip()[-300:]!r}; check "
        "the cluster, the image and the role of the node",
        code="environment.container_failed",
    )
