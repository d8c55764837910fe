"""Chart and plain manifests of a run: valid, accepted by an API server, with commands that the command line accepts."""

import json
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate.utils
import pytest
import yaml
from kubernetes import client, config, utils

from astraflow.access.authority import Authority
from astraflow.recipe.config import dataflow_config
from astraflow.recipe.loading import Check, load_recipe
from astraflow.runtime.clock import SystemClock
from deploy.helm import render
from maintainer.fleet.config import FleetConfig
from maintainer.fleet.providers import providers
from maintainer.fleet.providers.base import AuthError, LaunchSpec, NodePlan, Provider, RetireResult, Tags
from maintainer.fleet.providers.kubernetes.config import KubernetesOptions
from maintainer.fleet.providers.kubernetes.manifest import ORDER, pod_manifest
from maintainer.testing.provider_harness import launch_id
from tests.errors import raises_code
from tests.fakes.kubernetes_api import ApiRefusal, FakeCluster, Machine, check_fields
from tests.words import parsed

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
DEPLOY = render.MANIFESTS
NODES = "astraflow-nodes"
SLEEPER = (sys.executable, "-S", "-E", str(ROOT / "tests" / "fakes" / "sleeping_node.py"))
WORKLOADS = ("Deployment", "Job", "StatefulSet")
VERSIONS = [f"1.{minor}" for minor in range(30, 38)]
"""Supported versions of Kubernetes."""

SEVERAL_HOSTS = (
    'trainer.policies=["solver", "verifier"]',
    "trainer.hosts=2",
    "trainer.ranks=8",
    'trainer.accessMode="ReadWriteMany"',
)
FIXED_NODES = ('nodes.mode="fixed"', "mirrors.replicas=2", 'settings=["stop.steps=5"]', "metrics.enabled=false")
WITH_MAINTAINER = ("maintainer.enabled=true", "maintainer.hasKey=true", 'files={"mine.toml": "seed = 1"}')

Json = dict[str, Any]


@cache
def parsed_documents(text: str) -> tuple[Json, ...]:
    """Returns the objects of a text of manifests."""
    return tuple(document for document in yaml.safe_load_all(text) if document is not None)


def manifests(name: str = "run") -> tuple[Json, ...]:
    """Returns the manifests of a file in order."""
    return parsed_documents((DEPLOY / f"{name}.yaml").read_text())


def all_manifests() -> list[Json]:
    """Returns the manifests of all files."""
    return [document for path in sorted(DEPLOY.glob("*.yaml")) for document in manifests(path.stem)]


def manifest_of(kind: str, name: str = "", documents: tuple[Json, ...] | None = None) -> Json:
    """Returns the only manifest of a kind, and of a name if it is given."""
    documents = manifests() if documents is None else documents
    (manifest,) = [
        document for document in documents if document["kind"] == kind and name in ("", document["metadata"]["name"])
    ]
    return manifest


def pod_of(workload: Json) -> Json:
    """Returns the spec of the pods of a workload."""
    spec: Json = workload["spec"]["template"]["spec"]
    return spec


def workloads() -> list[Any]:
    """Returns all workloads of the files, as test parameters."""
    return [
        pytest.param(document, id=f"{path.stem}-{document['metadata']['name']}")
        for path in sorted(DEPLOY.glob("run*.yaml"))
        for document in manifests(path.stem)
        if document["kind"] in WORKLOADS
    ]


def containers(pod: Json) -> list[Json]:
    """Returns all containers of a pod, those for its start first."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def container(pod: Json, name: str) -> Json:
    """Returns a container of a pod."""
    (role_container,) = [role_container for role_container in containers(pod) if role_container["name"] == name]
    return role_container


def words_of(role_container: Json) -> list[str]:
    """Returns the words after `astraflow` in the command of a container."""
    command: list[str] = [*role_container["command"], *role_container.get("args", [])]
    return command[command.index("astraflow") + 1 :]


def options_of(role_container: Json) -> Json:
    """Returns the options of a container's command, as the command line reads them."""
    return parsed(words_of(role_container)).params


def commands_in(pod: Json) -> Iterator[list[str]]:
    """Yields the words of every `astraflow` command in a pod: of containers and of health checks."""
    for role_container in containers(pod):
        if role_container["command"][0] != "sh":
            yield words_of(role_container)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if "exec" in role_container.get(probe, {}):
                yield role_container[probe]["exec"]["command"][1:]


def fleet_config() -> FleetConfig:
    """Returns the fleet service's configuration from the manifests."""
    return FleetConfig.parse(tomllib.loads(manifest_of("ConfigMap")["data"]["fleet.toml"]), where="")


@pytest.fixture(autouse=True, scope="module")
def cached_schemas() -> Iterator[None]:
    """Reads each file of schemas once: reading them costs ten times as much as validating with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes_validate.utils, "schema_contents", cache(kubernetes_validate.utils.schema_contents))
        yield


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    with FakeCluster(tmp_path / "cluster") as cluster:
        yield cluster


def apply(cluster: FakeCluster, documents: tuple[Json, ...]) -> None:
    """Creates the manifests with the official client, as `kubectl create -f` does."""
    settings = client.Configuration()
    config.load_kube_config(str(cluster.kubeconfig), client_configuration=settings)
    with client.ApiClient(settings) as api:
        utils.create_from_yaml(api, yaml_objects=deepcopy([*documents]), namespace="astraflow")


@pytest.mark.needs("helm")
@pytest.mark.parametrize("name", render.VALUES)
def test_the_plain_manifests_are_rendered_from_the_chart(name: str) -> None:
    assert render.plain_manifests(name) == (DEPLOY / f"{name}.yaml").read_text(), "run `python -m deploy.helm.render`"


@pytest.mark.parametrize(
    "version", [VERSIONS[0], *(pytest.param(each, marks=pytest.mark.long) for each in VERSIONS[1:-1]), VERSIONS[-1]]
)
def test_the_schema_of_kubernetes_has_no_error_for_any_object(version: str) -> None:
    for document in all_manifests():
        if document["kind"] != "ScaledObject":
            kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.needs("helm")
@pytest.mark.parametrize(
    "settings", [SEVERAL_HOSTS, FIXED_NODES, WITH_MAINTAINER], ids=["hosts", "fixed", "maintainer"]
)
def test_variants_of_the_chart_are_valid_and_have_valid_commands(settings: tuple[str, ...]) -> None:
    documents = parsed_documents(render.rendered(settings=settings))
    for document in documents:
        kubernetes_validate.validate(document, VERSIONS[0], strict=True)
        if document["kind"] in WORKLOADS:
            for words in commands_in(pod_of(document)):
                parsed(words)


def test_the_schema_refuses_a_misplaced_field() -> None:
    """Verifies that the previous tests can fail."""
    spoilt = deepcopy(manifest_of("StatefulSet", "astraflow-run"))
    spoilt["spec"]["template"]["spec"]["fsGroupChangePolicy"] = "OnRootMismatch"  # belongs a level deeper
    with pytest.raises(kubernetes_validate.ValidationError, match="fsGroupChangePolicy"):
        kubernetes_validate.validate(spoilt, VERSIONS[0], strict=True)
    with pytest.raises(ApiRefusal, match="fsGroupChangePolicy"):
        check_fields("statefulsets", spoilt)


@pytest.mark.needs("helm")
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('nodes.mode="keda2"', "mode"),
        ("trainer.host=2", "host"),
        ("trainer.hosts=2", "accessMode"),  # ranks on several hosts share the volume
        ('nodes.mode="fixed",maintainer.enabled=true', "mode"),  # there is no fleet service to maintain
        ('nodes={"mode":"keda","minCount":9,"maxCount":2}', "minCount 9"),
        ('image.tag="sha256:abc"', "tag"),
        ("image.tag=1.20", "want string"),
        ('image.digest="sha256:abc"', "digest"),
        ('page.path="astraflow"', "path"),
        ('files={"a/b.toml": ""}', "a/b.toml"),
        ('files={"fleet.toml": ""}', "fleet.toml"),
    ],
)
def test_invalid_values_are_refused(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render.rendered(settings=[setting])


def templated(*options: str, release: str = "r", values: Json) -> list[Json]:
    """Returns the objects for values. Raises: ValueError with helm's message."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        return list(yaml.safe_load_all(render.helm("template", release, str(render.CHART), "-f", file.name, *options)))


def with_text(value: Any, text: str) -> Any:
    """Returns values in which every text is the given one."""
    if isinstance(value, dict):
        return {key: with_text(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [with_text(item, text) for item in value]
    return text if isinstance(value, str) else value


def without_refused(values: Json, usual: Json, message: str) -> Json:
    """Returns the values with the usual ones where the schema refused a value."""
    changed = deepcopy(values)
    for pointer in re.findall(r"at '/([^']+)'", message):
        parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")]
        target: Any = changed
        source: Any = usual
        for part in parts[:-1]:
            target, source = (each[int(part) if isinstance(each, list) else part] for each in (target, source))
        last = int(parts[-1]) if isinstance(target, list) else parts[-1]
        target[last] = source[last]
    return changed


TEXTS_OF_USERS: Json = {
    "settings": ["flows.a.prompt=x"],
    "files": {"mine.toml": "seed = 1"},
    "imagePullSecrets": [{"name": "pull"}],
    "page": {"ingress": {"enabled": True, "annotations": {"a": "b"}}, "service": {"annotations": {"a": "b"}}},
    "services": {"nodeSelector": {"a": "b"}},
    "mirrors": {"replicas": 1},
    "maintainer": {"enabled": True},
}
"""Values that the chart leaves empty."""

HOSTILE = (
    "  a=Answer: yes, issue #5 $(ASTRAFLOW_TOKEN) $$ {{ .Values.run }} '\"\\ \u00e9\u2028\n  - x: [&a *b] |\n\ttab\r\n",
    "a=true",
)


@pytest.mark.needs("helm")
@pytest.mark.parametrize("text", HOSTILE)
def test_every_text_reaches_its_place_unchanged_or_is_refused_by_the_schema(text: str) -> None:
    usual = merged(yaml.safe_load((render.CHART / "values.yaml").read_text()), TEXTS_OF_USERS)
    values = with_text(usual, text)
    with pytest.raises(ValueError, match="schema") as refused:
        templated(values=values)
    values = without_refused(values, usual, str(refused.value))
    plain = without_refused(with_text(usual, "a=plain"), usual, str(refused.value))
    free = ("recipe", "settings", "files")
    assert {key: values[key] for key in free} == {"recipe": text, "settings": [text], "files": {"mine.toml": text}}

    documents, expected = templated(values=values), with_words(templated(values=plain), text)
    for run in (manifest_of("StatefulSet", "r-run", tuple(each)) for each in (documents, expected)):
        del run["spec"]["template"]["metadata"]["annotations"]  # a hash of the configuration
    assert documents == expected


def merged(values: Json, more: Json) -> Json:
    """Returns the values with others in place."""
    return values | {
        key: merged(values[key], item) if isinstance(item, dict) and isinstance(values.get(key), dict) else item
        for key, item in more.items()
    }


def with_words(value: Any, text: str, *, is_word: bool = False) -> Any:
    """Returns objects with the text in place of `a=plain`; in words of commands Kubernetes replaces `$$` by `$`."""
    if isinstance(value, dict):
        return {key: with_words(item, text, is_word=key in ("command", "args")) for key, item in value.items()}
    if isinstance(value, list):
        return [with_words(item, text, is_word=is_word) for item in value]
    if not isinstance(value, str):
        return value
    return value.replace("a=plain", text.replace("$", "$$") if is_word else text)


@pytest.mark.needs("helm")
def test_names_are_valid_and_distinct_for_the_longest_release_and_any_policy() -> None:
    policies = ["solver", "Solver", "solver_1", "solver-1", "_", "a-", "solver_" * 12, "solver_" * 12 + "2"]
    values = {"trainer": {"policies": policies, "hosts": 2, "accessMode": "ReadWriteMany"}, "mirrors": {"replicas": 1}}
    for release in ("1", "a" * 45):
        documents = templated(release=release, values=values)
        names = [(document["kind"], document["metadata"]["name"]) for document in documents]
        assert len(names) == len(set(names))
        assert sum(kind == "Job" for kind, _ in names) == len(policies)
        for kind, name in names:
            longest = 52 if kind in ("StatefulSet", "Job") else 63  # the pods' names and labels are longer
            assert len(name) <= longest, name
            assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", name), name
        for document in documents:
            for label in document["metadata"].get("labels", {}).values():
                assert isinstance(label, str)
                assert re.fullmatch("[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", label), label
    with pytest.raises(ValueError, match="release name"):
        templated(release="a" * 46, values={})
    with pytest.raises(ValueError, match="namespace"):
        templated(f"--namespace={'n' * 58}", values={})


@pytest.mark.needs("helm")
def test_an_image_has_a_digest_instead_of_a_tag_and_the_page_a_path() -> None:
    digest = f"sha256:{'0a' * 32}"
    values = {"image": {"digest": digest}, "page": {"path": "/team/astraflow", "ingress": {"enabled": True}}}
    documents = tuple(templated(values=values))
    images = {each["image"] for each in containers(pod_of(manifest_of("StatefulSet", "r-run", documents)))}
    assert images == {f"registry.example/astraflow@{digest}"}
    fleet = tomllib.loads(manifest_of("ConfigMap", "", documents)["data"]["fleet.toml"])
    assert fleet["providers"]["here"]["image"] == f"registry.example/astraflow@{digest}"
    page = container(pod_of(manifest_of("StatefulSet", "r-page", documents)), "page")
    assert "--behind-proxy=https://page.example.org/team/astraflow" in page["args"]
    (rule,) = manifest_of("Ingress", "", documents)["spec"]["rules"]
    assert rule["http"]["paths"][0]["path"] == "/team/astraflow"


@pytest.mark.parametrize("name", render.VALUES)
def test_an_api_server_accepts_every_object(cluster: FakeCluster, name: str) -> None:
    documents = tuple(document for document in manifests(name) if document["kind"] != "ScaledObject")
    cluster.put("namespaces", "", {"metadata": {"name": "astraflow"}})
    apply(cluster, documents)
    assert sum(1 for method, _, _ in cluster.seen if method == "POST") == len(documents)


@pytest.mark.parametrize("workload", workloads())
def test_every_command_is_accepted_by_the_command_line(workload: Json) -> None:
    commands = list(commands_in(pod_of(workload)))
    assert commands
    for words in commands:
        parsed(words)


@pytest.mark.parametrize("workload", workloads())
def test_every_pod_meets_the_restricted_standard_and_writes_only_to_volumes(workload: Json) -> None:
    pod = pod_of(workload)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
    for role_container in containers(pod):
        assert role_container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, role_container["name"]
        assert role_container["resources"]["requests"] and role_container["resources"]["limits"]["memory"]
        mounted = {mount["name"] for mount in role_container["volumeMounts"]}
        assert mounted <= claims | {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("name", render.VALUES)
def test_every_workload_has_a_network_policy_and_a_disruption_budget(name: str) -> None:
    documents = manifests(name)
    for workload in (document for document in documents if document["kind"] in WORKLOADS):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        kinds = [
            document["kind"]
            for document in documents
            if document["kind"] in ("NetworkPolicy", "PodDisruptionBudget")
            if selected(document) == labels
        ]
        is_page = labels["app.kubernetes.io/component"] == "page"  # a second page cannot exist, and nothing is lost
        assert sorted(kinds) == (["NetworkPolicy"] if is_page else ["NetworkPolicy", "PodDisruptionBudget"])


def selected(document: Json) -> Json:
    """Returns the labels of the pods that a policy or a budget selects; empty for all pods."""
    spec = document["spec"]
    selector: Json = spec["podSelector"] if document["kind"] == "NetworkPolicy" else spec["selector"]
    labels: Json = selector.get("matchLabels", {})
    return labels


def test_services_use_the_ports_and_names_of_the_kubernetes_service() -> None:
    service = manifest_of("Service", "astraflow-run")
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    host = "astraflow-run.astraflow.svc"
    pod = pod_of(manifest_of("StatefulSet", "astraflow-run"))
    options_by_role = {name: options_of(container(pod, name)) for name in ("dataflow", "weights", "fleet")}
    assert options_by_role["dataflow"]["weights"] == f"{host}:{ports['weights']}"
    assert options_by_role["dataflow"]["enroll_port"] == ports["join"]
    assert options_by_role["dataflow"]["metrics"] == f"0.0.0.0:{ports['metrics']}"
    assert options_by_role["fleet"]["dataflow"] == f"{host}:{ports['planes']}"
    assert options_by_role["fleet"]["join_address"] == f"{host}:{ports['join']}"
    for name, port in (("dataflow", "planes"), ("weights", "weights"), ("fleet", "fleet")):
        assert options_by_role[name]["port"] == ports[port]
        assert options_by_role[name]["advertise"] == [host]
        check = container(pod, name)["livenessProbe"]["exec"]["command"]
        assert parsed(check[1:]).params == parsed(["health", name, f"localhost:{ports[port]}"]).params


def test_the_environment_of_every_container_is_read_by_the_program() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "astraflow").rglob("*.py"))
    for role_container in (
        role_container for param in workloads() for role_container in containers(pod_of(param.values[0]))
    ):
        names = {variable["name"] for variable in role_container.get("env", [])} - {"OMP_NUM_THREADS"}
        assert all(f'"{name}"' in sources for name in names), names


def test_the_init_container_creates_an_authority_once(tmp_path: Path) -> None:
    words = words_of(container(pod_of(manifest_of("StatefulSet", "astraflow-run")), "keys"))
    run = tmp_path / "run"
    run.mkdir()
    arguments = [word.replace("/run/astraflow", str(run)) for word in words]
    command = [sys.executable, "-m", "astraflow.cli", *arguments]
    subprocess.run(command, cwd=ROOT, check=True)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    Authority.load(run / "authority")
    private = [path for path in before if path.suffix == ".key"]
    assert len(private) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in private)
    subprocess.run(command, cwd=ROOT, check=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_only_services_and_mirrors_have_the_run_token_and_the_authority() -> None:
    having = {
        workload["metadata"]["name"]
        for workload in (param.values[0] for param in workloads())
        if "'astraflow-run', 'key': 'token'" in str(workload) or "astraflow-authority" in str(workload)
    }
    assert having == {"astraflow-run", "astraflow-mirror"}


def test_the_trainer_signs_versions_and_all_readers_verify_them() -> None:
    documents = manifests("run-gke")
    pod = pod_of(manifest_of("StatefulSet", "astraflow-run", documents))
    public = options_of(container(pod, "keys"))["public"]
    for role in ("dataflow", "weights"):
        assert options_of(container(pod, role))["weights_key"] == f"{public}/weights.pub"
    (trainer,) = pod_of(manifest_of("Job", documents=documents))["containers"]
    assert options_of(trainer)["signing_key"] == Path("/keys/weights.key")
    (mirror,) = pod_of(manifest_of("StatefulSet", "astraflow-mirror", documents))["containers"]
    assert options_of(mirror)["weights_key"] == "/run/astraflow/authority/weights.pub"
    assert options_of(mirror)["follow"] == ["astraflow-run.astraflow.svc:7002"]
    (node,) = pod_of(manifest_of("Deployment", documents=documents))["containers"]
    assert tomllib.loads(f"pull = {options_of(node)['pull']}")["pull"] == {
        "sources": ["astraflow-mirror.astraflow.svc:7002"]
    }


@pytest.mark.parametrize(
    "workload", [manifest_of("Job"), manifest_of("StatefulSet", "astraflow-page")], ids=["trainer", "page"]
)
def test_trainer_and_page_join_the_run_and_store_their_identity_in_a_volume(workload: Json) -> None:
    pod = pod_of(workload)
    (role_container,) = pod["containers"]
    options = options_of(role_container)
    assert options["dataflow"] == "astraflow-run.astraflow.svc:7000"
    mounts = {mount["mountPath"]: mount for mount in role_container["volumeMounts"]}
    lasting = "/var/lib/astraflow"
    assert options["credential_folder"].is_relative_to(lasting)
    assert options["directory"].is_relative_to(lasting)
    volume = mounts[lasting]["name"]
    assert "emptyDir" not in next((each for each in pod["volumes"] if each["name"] == volume), {})
    assert options["token_file"].is_relative_to("/secret")
    assert mounts["/secret"]["readOnly"] is True


def test_a_completed_trainer_is_not_restarted_and_only_one_runs_at_a_time() -> None:
    job = manifest_of("Job")["spec"]
    assert job["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert job["podReplacementPolicy"] == "Failed"
    assert manifest_of("PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteOncePod"]


@pytest.mark.needs("helm")
def test_ranks_on_several_hosts_are_started_by_torchrun_with_its_own_options() -> None:
    from torch.distributed.run import get_args_parser

    documents = parsed_documents(render.rendered(settings=SEVERAL_HOSTS))
    job = manifest_of("Job", "astraflow-trainer-solver", documents)["spec"]
    (role_container,) = job["template"]["spec"]["containers"]
    command = [*role_container["command"], *role_container["args"]]
    assert command[0] == "torchrun"
    options = get_args_parser().parse_args(command[1:])
    assert (options.nnodes, options.nproc_per_node, options.no_python) == ("2", "8", True)
    assert [options.training_script, *options.training_script_args][1:3] == ["serve", "trainer"]
    (secret,) = [each["value"] for each in role_container["env"] if each["name"] == "ASTRAFLOW_RANKS_SECRET_FILE"]
    assert Path(secret).parent == Path("/secret")
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 2, 2)
    host, _, domain = options.rdzv_endpoint.partition(":")[0].partition(".")
    assert host == "astraflow-trainer-solver-0"  # Kubernetes names the pods of an indexed job
    assert domain == job["template"]["spec"]["subdomain"]
    assert manifest_of("Service", domain, documents)["spec"]["clusterIP"] == "None"
    assert {document["metadata"]["name"] for document in documents if document["kind"] == "Job"} == {
        "astraflow-trainer-solver",
        "astraflow-trainer-verifier",
    }


def test_the_page_has_one_of_its_own_tls_and_an_ingress() -> None:
    own = options_of(pod_of(manifest_of("StatefulSet", "astraflow-page"))["containers"][0])
    assert (own["tls_certificate"], own["behind_proxy"]) == ("/tls/tls.crt", None)
    assert not [document for document in manifests() if document["kind"] == "Ingress"]
    documents = manifests("run-gke")
    proxied = options_of(pod_of(manifest_of("StatefulSet", "astraflow-page", documents))["containers"][0])
    ingress = manifest_of("Ingress", documents=documents)["spec"]
    assert not proxied["tls_certificate"]
    assert proxied["behind_proxy"] == f"https://{ingress['tls'][0]['hosts'][0]}"
    (peer,) = manifest_of("NetworkPolicy", "astraflow-page", documents)["spec"]["ingress"][0]["from"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "ingress-nginx"}


def test_keda_scales_nodes_that_join_with_a_token_of_their_pool() -> None:
    documents = manifests("run-gke")
    deployment = manifest_of("Deployment", documents=documents)
    pod = pod_of(deployment)
    (role_container,) = pod["containers"]
    options = options_of(role_container)
    assert options["token_file"] == Path("/secret/token")
    assert options["drain_s"] < pod["terminationGracePeriodSeconds"]
    assert "replicas" not in deployment["spec"]  # KEDA's autoscaler owns it
    scaled = manifest_of("ScaledObject", documents=documents)["spec"]
    assert scaled["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["pool"] == options["pool"]
    dataflow = options_of(container(pod_of(manifest_of("StatefulSet", "astraflow-run", documents)), "dataflow"))
    settings = dataflow_config(load_recipe(dataflow["recipe"], dataflow["overrides"], check=Check.NONE), run="evening")
    assert settings.keda is not None
    assert trigger["metadata"]["scalerAddress"] == f"{dataflow['advertise'][0]}:{settings.keda.port}"
    assert settings.pools[options["pool"]].max_nodes == scaled["maxReplicaCount"]


@pytest.mark.needs("helm")
def test_the_notes_have_valid_commands_for_every_secret_that_pods_wait_for() -> None:
    values = str(render.CHART / "values-gke.yaml")
    text = render.helm(
        "install", "astraflow", str(render.CHART), "--namespace=astraflow", "-f", values, "--dry-run=client"
    )
    notes = text.partition("NOTES:")[2]
    commands = re.findall(r"astraflow (token [^']*|login-link .*)", notes)
    assert len(commands) == 4
    for command in commands:
        parsed(shlex.split(command))
    created = set(re.findall(r"create secret generic (\S+)", notes))
    pods = [pod_of(document) for document in manifests("run-gke") if document["kind"] in WORKLOADS]
    mounted = {volume["secret"]["secretName"] for pod in pods for volume in pod["volumes"] if "secret" in volume}
    assert created == mounted


def test_only_the_fleet_container_has_a_cluster_token() -> None:
    pod = pod_of(manifest_of("StatefulSet", "astraflow-run"))
    having = [
        role_container["name"]
        for role_container in containers(pod)
        if any(mount["name"] == "api-access" for mount in role_container["volumeMounts"])
    ]
    assert having == ["fleet"]


def node_pod() -> Json:
    """Returns the pod that the provider of the manifests creates for the launch id and the time of the example."""
    settings = fleet_config()
    options = providers.check(settings.providers["here"])
    assert isinstance(options, KubernetesOptions)
    template = manifest_of("PodTemplate", documents=manifests("node-pod"))["template"]
    order = json.loads(template["metadata"]["annotations"][ORDER])
    pool = settings.pools[order["tags"]["pool"]]
    node = NodePlan(dataflow="astraflow-run.astraflow.svc:7000", drain_s=pool.drain_s)
    spec = LaunchSpec(tags=Tags(**order["tags"]), node=node, type=pool.type)
    expires_in_s = template["spec"]["activeDeadlineSeconds"]
    return pod_manifest(options, spec, order["launch_id"], now=order["tags"]["expires_at"] - expires_in_s)


def test_the_example_pod_matches_the_provider_and_the_restricted_standard() -> None:
    template = manifest_of("PodTemplate", documents=manifests("node-pod"))["template"]
    pod = node_pod()
    assert pod["spec"] == template["spec"]
    assert {key: pod["metadata"][key] for key in template["metadata"]} == template["metadata"]
    (role_container,) = template["spec"]["containers"]
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert role_container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def rules() -> list[Json]:
    """Returns the RBAC rules of the fleet service."""
    role_rules: list[Json] = manifest_of("Role")["rules"]
    return role_rules


def rights() -> list[tuple[str, str]]:
    """Returns each (resource, verb) pair of the rules."""
    return [(rule["resources"][0], verb) for rule in rules() for verb in rule["verbs"]]


@pytest.fixture
async def provider(cluster: FakeCluster) -> AsyncIterator[Provider]:
    """Provider as the manifests configure it, with the service account's rights."""
    cluster.put("namespaces", "", {"metadata": {"name": NODES}})
    cluster.machines = [Machine(name="gpu-1", taint="nvidia.com/gpu", allocatable={"nvidia.com/gpu": 8})]
    cluster.roles["fleet"] = rules()
    changed = {"kubeconfig": str(cluster.write_kubeconfig("fleet")), "command": SLEEPER}
    settings = fleet_config().providers["here"] | changed
    built = providers.build(settings, clock=SystemClock(), directory=cluster.directory)
    yield built
    await built.close()


async def call_every_method(provider: Provider) -> None:
    """Calls every provider method that the fleet service uses."""
    launch, tags = launch_id(), Tags(cluster="evening", pool="gpu", run="run", expires_at=4_000_000_000.0)
    node = NodePlan(dataflow="astraflow-run.astraflow.svc:7000")
    spec = LaunchSpec(tags=tags, node=node, type="node", token="afj.x")
    handle = await provider.launch(spec, launch)
    assert await provider.launch(spec, launch) == handle
    assert (await provider.describe(handle)).tags == tags
    assert [instance.handle for instance in await provider.list("evening")] == [handle]
    while await provider.retire(launch) is not RetireResult.GONE:
        pass


async def test_the_permissions_of_the_service_account_suffice(cluster: FakeCluster, provider: Provider) -> None:
    await call_every_method(provider)
    assert all(f"/namespaces/{NODES}/" in path for _, path, _ in cluster.seen if "/pods" in path)


@pytest.mark.parametrize(("resource", "verb"), rights())
async def test_every_permission_of_the_service_account_is_needed(
    cluster: FakeCluster, provider: Provider, resource: str, verb: str
) -> None:
    fewer = deepcopy(rules())
    next(rule for rule in fewer if resource in rule["resources"])["verbs"].remove(verb)
    cluster.roles["fleet"] = fewer
    with raises_code(AuthError, "auth_error", resource.removesuffix("s")):
        await call_every_method(provider)
