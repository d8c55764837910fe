"""Manifests of deploy/kubernetes: accepted by an API server, with valid commands and sufficient rights."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config, utils

from astraflow.access.authority import Authority
from astraflow.runtime.clock import SystemClock
from maintainer.fleet.config import FleetConfig
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import Auth, LaunchSpec, NodePlan, Provider, RetireResult, Tags
from maintainer.fleet.providers.kubernetes_config import KubernetesOptions
from maintainer.fleet.providers.kubernetes_manifest import ORDER, pod_manifest
from tests.fakes.kubernetes_api import ApiRefusal, FakeCluster, Machine, check_fields
from tests.suites.provider_suite import launch_id
from tests.words import parsed

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "kubernetes"
KEDA = ROOT / "deploy" / "keda" / "rollout-nodes.yaml"
NAMESPACE = "astraflow-nodes"
MOUNTED = "/run/astraflow"
SLEEPER = (sys.executable, "-S", "-E", str(ROOT / "tests" / "fakes" / "sleeping_node.py"))

Json = dict[str, Any]


def manifests(name: str) -> list[Json]:
    """Returns the manifests of a file in order."""
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def manifest_of(name: str, kind: str) -> Json:
    """Returns the only manifest of a kind in a file."""
    (manifest,) = [document for document in manifests(name) if document["kind"] == kind]
    return manifest


def pods() -> list[tuple[str, Json]]:
    """Returns name and spec of each pod template in the manifests."""
    files = [*DEPLOY.glob("*.yaml"), KEDA]
    documents = [document for file in files for document in yaml.safe_load_all(file.read_text())]
    return [
        (f"{document['kind']}/{document['metadata']['name']}", document["spec"]["template"]["spec"])
        for document in documents
        if document["kind"] in ("Deployment", "Job", "StatefulSet")
    ]


def words_of(container: Json) -> list[str]:
    """Returns the arguments of a container's `astraflow` command."""
    command: list[str] = [*container["command"], *container.get("args", [])]
    assert command[0] == "astraflow"
    return command[1:]


def fleet_config() -> FleetConfig:
    """Returns the fleet service's configuration from the manifests."""
    return FleetConfig.parse(tomllib.loads(manifest_of("run.yaml", "ConfigMap")["data"]["fleet.toml"]), where="")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    with FakeCluster(tmp_path / "cluster") as cluster:
        yield cluster


def apply(cluster: FakeCluster, *names: str) -> None:
    """Creates the manifests with the official client, as `kubectl create -f` does."""
    cluster.put("namespaces", "", {"metadata": {"name": "astraflow"}})
    settings = client.Configuration()
    config.load_kube_config(str(cluster.kubeconfig), client_configuration=settings)
    with client.ApiClient(settings) as api:
        for name in names:
            utils.create_from_yaml(api, str(DEPLOY / name))


def test_an_api_server_accepts_every_manifest(cluster: FakeCluster) -> None:
    names = ("nodes.yaml", "run.yaml", "node-pod.yaml", "trainer.yaml", "web.yaml", "terminal.yaml")
    apply(cluster, *names)
    wanted = sum(len(manifests(name)) for name in names)
    assert sum(1 for method, _, _ in cluster.seen if method == "POST") == wanted
    assert {kind for kind, _, _ in cluster.objects} >= {"statefulsets", "services", "roles", "networkpolicies"}


def test_a_misplaced_field_is_refused(cluster: FakeCluster, tmp_path: Path) -> None:
    """Verifies that the previous test can fail."""
    spoilt = manifest_of("run.yaml", "StatefulSet")
    spoilt["spec"]["template"]["spec"]["fsGroupChangePolicy"] = "OnRootMismatch"  # belongs a level deeper
    path = tmp_path / "spoilt.yaml"
    path.write_text(json.dumps(spoilt))
    with pytest.raises(ValueError, match="fsGroupChangePolicy"):
        apply(cluster, str(path))
    with pytest.raises(ApiRefusal, match="fsGroupChangePolicy"):
        check_fields("statefulsets", spoilt)


@pytest.mark.parametrize("role", ["dataflow", "weights", "fleet"])
def test_services_start_with_valid_options(role: str) -> None:
    containers = manifest_of("run.yaml", "StatefulSet")["spec"]["template"]["spec"]["containers"]
    (container,) = [candidate for candidate in containers if candidate["name"] == role]
    program, *words = container["command"]
    assert (program, words[:2]) == ("astraflow", ["serve", role])
    options = parsed([*words, *container["args"]]).params
    assert options["host"] == "0.0.0.0"  # noqa: S104 (in the pod)
    assert f"{options['port']}" in f"{container['readinessProbe']}"


def test_services_use_the_ports_and_names_of_the_kubernetes_service() -> None:
    service = manifest_of("run.yaml", "Service")
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    containers = manifest_of("run.yaml", "StatefulSet")["spec"]["template"]["spec"]["containers"]
    container_options = {
        container["name"]: dict(word.removeprefix("--").split("=", 1) for word in container["args"])
        for container in containers
    }
    assert container_options["dataflow"]["weights"] == f"{host}:{ports['weights']}"
    assert container_options["fleet"]["dataflow"] == f"{host}:{ports['planes']}"
    assert container_options["fleet"]["join-address"] == f"{host}:{ports['join']}"
    assert int(container_options["dataflow"]["enroll-port"]) == ports["join"]
    assert [int(container_options[role]["port"]) for role in ("dataflow", "weights", "fleet")] == [
        ports["planes"],
        ports["weights"],
        ports["fleet"],
    ]
    assert {options["advertise"] for options in container_options.values()} == {host}


def test_the_init_container_creates_an_authority_once(tmp_path: Path) -> None:
    (container,) = manifest_of("run.yaml", "StatefulSet")["spec"]["template"]["spec"]["initContainers"]
    words: list[str] = container["command"] + container["args"]
    assert words[0] == "astraflow"
    run = tmp_path / "run"
    run.mkdir()
    command = [sys.executable, "-m", "astraflow.cli", *(str(run) if word == MOUNTED else word for word in words[1:])]
    subprocess.run(command, cwd=ROOT, check=True)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    Authority.load(run / "authority")
    assert all(path.stat().st_mode & 0o077 == 0 for path in before)
    subprocess.run(command, cwd=ROOT, check=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("pod", "spec"), pods())
def test_every_pod_meets_the_restricted_standard_and_writes_only_to_volumes(pod: str, spec: Json) -> None:
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, container["name"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes_of(pod, spec)


def volumes_of(pod: str, spec: Json) -> set[str]:
    """Names of the volumes that the containers of a pod may mount."""
    documents = [document for file in DEPLOY.glob("*.yaml") for document in manifests(file.name)]
    claimed = {
        claim["metadata"]["name"]
        for document in documents
        if f"{document['kind']}/{document['metadata']['name']}" == pod
        for claim in document["spec"].get("volumeClaimTemplates", [])
    }
    return claimed | {volume["name"] for volume in spec["volumes"]}


def test_only_the_pod_of_the_run_has_the_run_token() -> None:
    assert [pod for pod, spec in pods() if "'astraflow-run', 'key': 'token'" in str(spec)] == ["StatefulSet/run"]
    assert [pod for pod, spec in pods() if "astraflow-run" in str(spec["volumes"])] == ["StatefulSet/run"]


def test_the_trainer_signs_versions_and_all_readers_verify_them() -> None:
    spec = manifest_of("run.yaml", "StatefulSet")["spec"]["template"]["spec"]
    (keys,) = spec["initContainers"]
    public = parsed(words_of(keys)).params["public"]
    for role in ("dataflow", "weights"):
        (container,) = [candidate for candidate in spec["containers"] if candidate["name"] == role]
        assert parsed(words_of(container)).params["weights_key"] == f"{public}/weights.pub"
    (trainer,) = manifest_of("trainer.yaml", "Job")["spec"]["template"]["spec"]["containers"]
    assert parsed(words_of(trainer)).params["signing_key"] == Path("/keys/weights.key")


@pytest.mark.parametrize(("name", "kind"), [("trainer.yaml", "Job"), ("web.yaml", "StatefulSet")])
def test_trainer_and_page_join_the_run_and_store_their_identity_in_a_volume(name: str, kind: str) -> None:
    spec = manifest_of(name, kind)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    options = parsed(words_of(container)).params
    ports = {port["name"]: port["port"] for port in manifest_of("run.yaml", "Service")["spec"]["ports"]}
    assert options["dataflow"] == f"run.astraflow.svc:{ports['join']}"
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    lasting = "/var/lib/astraflow"
    assert options["credential_folder"].is_relative_to(lasting)
    assert options["directory"].is_relative_to(lasting)
    volume = mounts[lasting]["name"]
    assert "emptyDir" not in next((candidate for candidate in spec["volumes"] if candidate["name"] == volume), {})
    assert options["token_file"].is_relative_to("/secret")
    assert mounts["/secret"]["readOnly"] is True


def test_a_completed_trainer_is_not_restarted_and_only_one_runs_at_a_time() -> None:
    job = manifest_of("trainer.yaml", "Job")["spec"]
    assert job["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert job["podReplacementPolicy"] == "Failed"
    assert manifest_of("trainer.yaml", "PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteOncePod"]


def test_keda_nodes_join_with_a_token_of_their_pool() -> None:
    (deployment,) = [document for document in yaml.safe_load_all(KEDA.read_text()) if document["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    options = parsed(words_of(container)).params
    assert options["pool"] == "gpu"
    assert options["token_file"] == Path("/secret/token")
    assert not options["ca_hash"]  # the token contains the hash
    assert options["drain_s"] < deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("file", [DEPLOY / "trainer.yaml", DEPLOY / "web.yaml", KEDA], ids=lambda file: file.name)
def test_the_documented_token_commands_are_valid(file: Path) -> None:
    (command,) = re.findall(r"astraflow (token \S+:7001 --(?:pool|policy|role)[^'\n]*)", file.read_text())
    assert parsed(shlex.split(command)).params["out"] is not None


def test_only_the_fleet_container_has_a_cluster_token() -> None:
    spec = manifest_of("run.yaml", "StatefulSet")["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    having = [
        container["name"]
        for container in [*spec["containers"], *spec["initContainers"]]
        if any(mount["name"] == "api-access" for mount in container["volumeMounts"])
    ]
    assert having == ["fleet"]


def test_the_pod_template_matches_the_provider_and_the_restricted_standard() -> None:
    provider_config = fleet_config()
    options = providers.check(provider_config.providers["here"])
    assert isinstance(options, KubernetesOptions)
    template = manifest_of("node-pod.yaml", "PodTemplate")["template"]
    order = json.loads(template["metadata"]["annotations"][ORDER])
    pool = provider_config.pools[order["tags"]["pool"]]
    node = NodePlan(dataflow="run.astraflow.svc:7000", drain_s=pool.drain_s)
    spec = LaunchSpec(tags=Tags(**order["tags"]), node=node, type=pool.type)
    expires_in_s = template["spec"]["activeDeadlineSeconds"]
    pod = pod_manifest(options, spec, order["launch_id"], now=order["tags"]["expires_at"] - expires_in_s)
    assert pod["spec"] == template["spec"]
    assert {key: pod["metadata"][key] for key in template["metadata"]} == template["metadata"]
    (container,) = template["spec"]["containers"]
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def rules() -> list[Json]:
    """Returns the RBAC rules of the fleet service."""
    role_rules: list[Json] = manifest_of("nodes.yaml", "Role")["rules"]
    return role_rules


def rights() -> list[tuple[str, str]]:
    """Returns each (resource, verb) pair of the rules."""
    return [(rule["resources"][0], verb) for rule in rules() for verb in rule["verbs"]]


@pytest.fixture
async def provider(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Provider]:
    """Provider as the manifests configure it, with the service account's rights."""
    apply(cluster, "nodes.yaml", "run.yaml")
    cluster.machines = [Machine(name="gpu-1", taint="nvidia.com/gpu", allocatable={"nvidia.com/gpu": 8})]
    cluster.roles["fleet"] = rules()
    changed = {"kubeconfig": str(cluster.write_kubeconfig("fleet")), "command": SLEEPER}
    there = fleet_config().providers["here"] | changed
    instance_provider = providers.build(there, clock=SystemClock(), directory=cluster.directory)
    yield instance_provider
    await instance_provider.close()


async def call_every_method(provider: Provider) -> None:
    """Calls every provider method that the fleet service uses."""
    launch, tags = launch_id(), Tags(cluster="evening", pool="gpu", run="run", expires_at=4_000_000_000.0)
    spec = LaunchSpec(tags=tags, node=NodePlan(dataflow="run.astraflow.svc:7000"), type="gpu", token="afj.x")
    handle = await provider.launch(spec, launch)
    assert await provider.launch(spec, launch) == handle
    assert (await provider.describe(handle)).tags == tags
    assert [instance.handle for instance in await provider.list("evening")] == [handle]
    while await provider.retire(launch) is not RetireResult.GONE:
        pass


async def test_the_permissions_of_the_service_account_suffice(cluster: FakeCluster, provider: Provider) -> None:
    await call_every_method(provider)
    assert all(f"/namespaces/{NAMESPACE}/" in path for _, path, _ in cluster.seen if "/pods" in path)


@pytest.mark.parametrize(("resource", "verb"), rights())
async def test_every_permission_of_the_service_account_is_needed(
    cluster: FakeCluster, provider: Provider, resource: str, verb: str
) -> None:
    fewer = deepcopy(rules())
    next(rule for rule in fewer if resource in rule["resources"])["verbs"].remove(verb)
    cluster.roles["fleet"] = fewer
    with pytest.raises(Auth, match=resource.removesuffix("s")):
        await call_every_method(provider)
