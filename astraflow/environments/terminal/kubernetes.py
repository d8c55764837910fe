"""Runner of terminal tasks in pods of a Kubernetes cluster, by the command line `kubectl`."""

import base64
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.datasets.worlds.terminal import TerminalTask
from astraflow.environments.container_engine import COMMAND_S, GRACE_S, ContainerEngine, stopped_command, with_timeout
from astraflow.environments.terminal.containers import ContainerSession
from astraflow.environments.terminal.runners import archive_of, files_below
from astraflow.sandbox.base import JobResult, Outcome, SandboxError

NETWORK_POLICY = "astraflow-terminal"
"""Name of the NetworkPolicy that blocks all traffic of the pods; `deploy/kubernetes/terminal.yaml` defines it."""
_ROLE = "astraflow-terminal"
"""Label of the pods, which the NetworkPolicy selects."""
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


class KubernetesRunner:
    """Runs each episode in its own pod, without the token of a service account. Images are not built: a task names an
    image that the cluster can pull. The working directory stays the same from one command to the next; shell variables
    are lost."""

    def __init__(self, options: PodOptions) -> None:
        self._options = options
        self._kubectl = ContainerEngine("kubectl")

    def open(self, task: TerminalTask) -> AbstractAsyncContextManager[ContainerSession]:
        """Starts a pod. Raises: InvalidInput for a task without an image."""
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
        created = await self._done("create", "--filename=-", "--output=name", stdin=json.dumps(self._pod(task)))
        name = created.stdout.strip().removeprefix("pod/")
        try:
            limit = f"--timeout={task.build_s:g}s"
            await self._done("wait", "--for=condition=Ready", f"pod/{name}", limit, timeout_s=task.build_s + GRACE_S)
            yield ContainerSession(Pod(self, name), task)
        finally:
            await self._call("delete", f"pod/{name}", "--grace-period=1", "--wait=false", "--ignore-not-found")

    async def execute(self, pod: str, command: tuple[str, ...], *, timeout_s: float, stdin: str) -> JobResult:
        """Runs a command in a pod. Raises: SandboxError when the pod does not answer."""
        interactive = ("--stdin",) if stdin else ()
        result = await self._call(
            "exec", *interactive, pod, "--", *stopped_command(command, timeout_s),
            timeout_s=timeout_s + GRACE_S, stdin=stdin,
        )  # fmt: skip
        *lines, last = result.stderr.rstrip("\n").rsplit("\n", 1)
        if result.outcome is Outcome.FAILED and not last.startswith(_ENDED):
            raise _failed("exec", result)
        shown = replace(result, stderr="\n".join(lines)) if last.startswith(_ENDED) else result
        return with_timeout(shown, timeout_s)

    async def _done(self, *arguments: str, stdin: str = "", timeout_s: float = COMMAND_S) -> JobResult:
        result = await self._call(*arguments, stdin=stdin, timeout_s=timeout_s)
        if result.outcome is not Outcome.PASSED:
            raise _failed(arguments[0], result)
        return result

    async def _call(self, *arguments: str, stdin: str = "", timeout_s: float = COMMAND_S) -> JobResult:
        namespace_option = (f"--namespace={self._options.namespace}",) if self._options.namespace else ()
        return await self._kubectl.call(*namespace_option, *arguments, timeout_s=timeout_s, stdin=stdin)

    def _pod(self, task: TerminalTask) -> Mapping[str, Any]:
        size = {"cpu": f"{task.cpus:g}", "memory": str(task.memory_bytes)}
        container = {
            "name": "task",
            "image": task.image,
            "command": ["sleep", "infinity"],
            "resources": {"requests": size, "limits": size},
            "securityContext": {"allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"}},
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
        return await self._runner.execute(self._name, command, timeout_s=timeout_s, stdin="")

    async def copy_folder(self, source: Path, target: str) -> JobResult:
        """Copies the files of a folder of this machine into a folder of the pod, which exists."""
        packed = base64.b64encode(archive_of(files_below(source))).decode()
        unpack = ("sh", "-c", f"base64 -d | tar -xf - -C {target} --no-same-owner")
        return await self._runner.execute(self._name, unpack, timeout_s=COMMAND_S, stdin=packed)


def _failed(verb: str, result: JobResult) -> SandboxError:
    return SandboxError(
        f"cannot use a pod: kubectl {verb} ended with {result.outcome.value}: {result.stderr.strip()[-300:]!r}; check "
        "the cluster, the image and the role of the node",
        code="environment.container_failed",
    )
