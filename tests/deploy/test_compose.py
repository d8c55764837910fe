"""docker-compose.yml: valid commands, no exposed ports or secrets, and a run with these commands that learns."""

import http.cookiejar
import json
import os
import re
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from astraflow.access.authority import Authority
from astraflow.runtime.config.toml import read_toml
from maintainer.agent.config import MaintainerConfig
from maintainer.fleet.config import FleetConfig
from tests import tools
from tests.deploy.composed import ROOT, Composed, compose, depends_on, mounts, seconds
from tests.fakes.forking import ForkingProgram
from tests.words import PROGRAM, parsed

TOKEN = "5f" * 32

PROFILES = ("gpu", "maintainer", "monitoring", "postgres")
SETTINGS = {"ASTRAFLOW_METRICS_TOKEN": "metrics", "ASTRAFLOW_DATABASE_PASSWORD": "password"}
"""Settings that profiles require."""

FILE = compose(profiles=PROFILES)
PUBLISHED = {name: service for name, service in FILE["services"].items() if "init" not in service}
"""Services whose images others publish."""
SERVICES: dict[str, Any] = {name: service for name, service in FILE["services"].items() if name not in PUBLISHED}
ENDS = ("keys", "prepare", "tokens")
"""Services that run to completion once."""

ENDLESS = """
extends = "smoke"
name = "endless"
summary = "smoke, until the test is over"

[stop]
reward = 2.0 # no mean reward is that high
steps = 1000000
"""

RESTARTED_ON_FAILURE = ("node", "node-gpu", "trainer", "trainer-gpu")

CHECKED = [name for name, service in SERVICES.items() if "healthcheck" in service]


def options(name: str) -> dict[str, str]:
    """Returns the `--NAME=VALUE` options of a service."""
    words = [word.removeprefix("--").partition("=") for word in SERVICES[name]["command"] if word.startswith("--")]
    return {option: value for option, _, value in words}


@pytest.mark.parametrize("name", SERVICES)
def test_service_commands_are_accepted_by_the_command_line(name: str) -> None:
    assert parsed(SERVICES[name]["command"]).params


@pytest.mark.parametrize("name", CHECKED)
def test_health_checks_call_their_own_service(name: str) -> None:
    how, program, *words = SERVICES[name]["healthcheck"]["test"]
    assert (how, program) == ("CMD", PROGRAM)
    parameters = parsed(words).params
    assert parameters["role"] == name
    assert parameters["address"].removeprefix("https://").split(":")[0] in (name, "localhost")
    assert parameters["address"].endswith(f":{options(name)['port']}")


def test_dependencies_of_services_can_be_satisfied() -> None:
    for name, service in SERVICES.items():
        for other, condition in depends_on(service).items():
            wanted = "service_completed_successfully" if other in ENDS else "service_healthy"
            assert condition == wanted, f"{name} would wait for {other} for ever, or not at all"
            assert other in ENDS or other in CHECKED


def test_services_have_matching_ports_and_certificates_for_their_names() -> None:
    listening = {name: options(name)["port"] for name in ("weights", "dataflow", "fleet")}
    addresses = {f"{name}:{port}" for name, port in listening.items()} | {
        f"dataflow:{options('dataflow')['enroll-port']}"
    }
    used_addresses = {
        address for name in SERVICES for address in re.findall(r"\b[a-z]+:\d{4}\b", str(SERVICES[name]["command"]))
    }
    assert used_addresses == addresses
    assert {options(name)["advertise"] for name in listening} == set(listening)
    joining = f"dataflow:{options('dataflow')['enroll-port']}"
    assert SERVICES["node"]["command"][1] == joining == options("fleet")["join-address"]


def test_only_pages_are_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in FILE["services"].items() if "ports" in service}
    port = options("web")["port"]
    assert published == {
        "web": [f"127.0.0.1:{port}:{port}"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    assert not any(service.get("network_mode") == "host" for service in FILE["services"].values())


def test_nothing_is_privileged_and_only_volumes_can_be_written() -> None:
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "cap_add", "user", "devices", "pid", "ipc"} & service.keys()
    for name, service in PUBLISHED.items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["user"] not in ("root", "0")
        assert not {"privileged", "cap_add", "devices", "pid", "ipc"} & service.keys()


def test_a_service_can_write_its_folders() -> None:
    for name, service in SERVICES.items():
        folder = "/var/lib/astraflow"
        for option in ("directory", "public"):
            path = options(name).get(option, "")
            writable = [target for target, (_, is_read) in mounts(service).items() if not is_read]
            assert not path or any(path.startswith(target) for target in writable), f"{name} cannot write {path}"
        if service.get("environment", {}).get("ASTRAFLOW_HOME", "").startswith(folder):
            assert folder in mounts(service)


def test_declared_and_used_volumes_secrets_and_configs_are_the_same() -> None:
    services = FILE["services"].values()
    used = {volume for service in services for volume, _ in mounts(service).values()}
    assert used == set(FILE["volumes"])
    built = {secret for service in services for secret in service.get("build", {}).get("secrets", [])}
    read = {secret for service in services for secret in service.get("secrets", [])}
    assert read | built == set(FILE["secrets"])
    assert {config_["source"] for service in services for config_ in service.get("configs", [])} == set(FILE["configs"])
    assert all((ROOT / config["file"]).is_file() for config in FILE["configs"].values())


def test_the_image_has_a_folder_owned_by_its_user_for_each_volume() -> None:
    """A new volume inherits owner and mode of its mount folder; without the folder, root owns it."""
    image = (ROOT / "deploy" / "node" / "Dockerfile").read_text()
    assert image.index("install -d -o astraflow") < image.index("USER 10001")
    for service in SERVICES.values():
        for target, (volume, _) in mounts(service).items():
            if "driver_opts" in FILE["volumes"][volume]:
                assert "uid=10001,gid=10001,mode=0700" in FILE["volumes"][volume]["driver_opts"]["o"]
                continue
            assert re.search(rf"install -d -o astraflow[^\n]* {target}\b", image), target


def test_only_dataflow_can_write_keys_and_nodes_cannot_read_them() -> None:
    having = {name: dict(mounts(service).values()) for name, service in SERVICES.items()}
    assert {name for name, volumes in having.items() if volumes.get("keys") is False} == {"keys", "dataflow"}
    assert "keys" not in having["node"]
    assert "ASTRAFLOW_AUTHORITY" not in SERVICES["node"]["environment"]


def test_nodes_hold_a_token_of_their_pool_and_not_the_run_token() -> None:
    assert SERVICES["node"]["secrets"] == []
    token = options("tokens")["out"]
    assert SERVICES["node"]["environment"]["ASTRAFLOW_TOKEN_FILE"] == token
    assert options("tokens")["pool"] == options("node")["pool"]
    assert "reusable" in options("tokens")
    assert SERVICES["tokens"]["environment"]["ASTRAFLOW_EXISTING_TOKEN_FILE"] == token
    having = {name: dict(mounts(service).values()).get("nodes") for name, service in SERVICES.items()}
    holders = {name: is_read for name, is_read in having.items() if is_read is not None}
    assert holders == {"tokens": False, "node": True, "node-gpu": True}
    assert depends_on(SERVICES["node"])["tokens"] == "service_completed_successfully"


def test_services_that_transfer_weights_share_a_memory_volume_which_nodes_cannot_write() -> None:
    folder = "/run/astraflow/shm"
    sharing = {name: mounts(service)[folder] for name, service in SERVICES.items() if folder in mounts(service)}
    assert {name for name, (_, is_read_only) in sharing.items() if not is_read_only} == {
        "weights",
        "trainer",
        "trainer-gpu",
    }
    assert {name for name, (_, is_read_only) in sharing.items() if is_read_only} == {"node", "node-gpu", "fleet"}
    assert {volume for volume, _ in sharing.values()} == {"shm"}
    assert {SERVICES[name]["environment"]["ASTRAFLOW_SHARED_FOLDER"] for name in sharing} == {folder}
    assert FILE["volumes"]["shm"]["driver_opts"]["type"] == "tmpfs"
    assert not any("ipc" in service or "/dev/shm" in mounts(service) for service in SERVICES.values())  # noqa: S108


def test_a_profile_adds_its_services_and_nothing_else() -> None:
    always = compose()["services"].keys()
    added = {profile: compose(profiles=[profile])["services"].keys() - always for profile in PROFILES}
    assert added == {
        "gpu": {"trainer-gpu", "node-gpu"},
        "maintainer": {"maintainer"},
        "monitoring": {"prometheus", "grafana"},
        "postgres": {"database"},
    }
    for document in (
        "docker-compose.yml",
        "docs/how-to/deploy.md",
    ):  # a command leaves services of other profiles alone
        chosen = re.findall(r"docker compose[^\n]*--(?:profile|scale) (\S+)", (ROOT / document).read_text())
        assert set(chosen) == {"'*'"}


def test_counts_come_from_the_environment() -> None:
    counts = {name: int(service["scale"]) for name, service in SERVICES.items() if "scale" in service}
    assert counts == {"node": 3, "trainer": 1, "node-gpu": 1, "trainer-gpu": 1}
    settings = {
        "ASTRAFLOW_NODES": "0",
        "ASTRAFLOW_TRAINERS": "0",
        "ASTRAFLOW_GPU_NODES": "5",
        "ASTRAFLOW_NODE_GPUS": "2",
    }
    chosen = compose(settings, profiles=["gpu"])["services"]
    assert {name: service["scale"] for name, service in chosen.items() if "scale" in service} == {
        "node": "0",
        "trainer": "0",
        "node-gpu": "5",
        "trainer-gpu": 1,
    }
    (device,) = chosen["node-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "2", "capabilities": ["gpu"]}


def test_the_example_of_settings_has_every_variable_with_its_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", text))
    used = {*defaults, *re.findall(r"\$\{(\w+)", text), "COMPOSE_PROFILES"}
    example = dict(re.findall(r"^#(\w+)=(.*)$", (ROOT / ".env.example").read_text(), flags=re.M))
    assert example.keys() == used
    assert {name: example[name] for name in defaults} == defaults
    assert set(example["COMPOSE_PROFILES"].split(",")) <= set(PROFILES)
    guide = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
    assert not [name for name in used if f"`{name}`" not in guide]


def test_the_database_is_used_by_page_and_fleet_where_it_has_a_password() -> None:
    without, using = compose()["services"]["web"]["environment"], compose(SETTINGS)["services"]["web"]["environment"]
    assert without["ASTRAFLOW_WEB_DATABASE"] == ""
    fleet = FleetConfig.parse(read_toml(ROOT / "deploy" / "compose" / "fleet-postgres.toml"), where="")
    plain = FleetConfig.parse(read_toml(ROOT / FILE["configs"]["fleet"]["file"]), where="")
    assert fleet == plain.model_copy(update={"database": fleet.database})
    user = FILE["services"]["database"]["environment"]["POSTGRES_USER"]
    created = re.findall(r"CREATE DATABASE (\w+);", (ROOT / FILE["configs"]["databases"]["file"]).read_text())
    urls = {using["ASTRAFLOW_WEB_DATABASE"], fleet.database}
    assert urls == {f"postgresql://{user}@database/{name}" for name in created}
    assert "PGPASSWORD" in compose(SETTINGS)["services"]["fleet"]["environment"]


def test_metrics_are_served_with_a_token_to_the_prometheus_of_the_file() -> None:
    assert options("dataflow")["metrics"] == ""
    command = compose(SETTINGS)["services"]["dataflow"]["command"]
    assert "--metrics=0.0.0.0:9464" in command
    prometheus = yaml.safe_load((ROOT / FILE["configs"]["prometheus"]["file"]).read_text())
    (job,) = prometheus["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["dataflow:9464"]}]
    assert job["authorization"]["credentials_file"] == "/run/secrets/metrics-token"
    assert FILE["secrets"]["metrics-token"] == {"environment": "ASTRAFLOW_METRICS_TOKEN"}
    (source,) = yaml.safe_load((ROOT / FILE["configs"]["grafana-datasource"]["file"]).read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"


@pytest.mark.needs("compose")
@pytest.mark.parametrize("profiles", ["", *PROFILES, ",".join(PROFILES)])
def test_compose_accepts_the_file_with_each_profile(profiles: str) -> None:
    plugin = tools.compose_plugin()
    assert plugin is not None
    command = [str(plugin), "--env-file", os.devnull, "--file", "docker-compose.yml", "config", "--format", "json"]
    environment = {"PATH": os.environ["PATH"], "HOME": os.devnull, "COMPOSE_PROFILES": profiles, **SETTINGS}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    chosen = [profile for profile in profiles.split(",") if profile]
    assert json.loads(done.stdout)["services"].keys() == compose(profiles=chosen)["services"].keys()


def test_each_role_has_its_own_state_volume() -> None:
    keeping = {
        name: mounts(service)["/var/lib/astraflow"][0]
        for name, service in SERVICES.items()
        if "/var/lib/astraflow" in mounts(service)
    }
    assert keeping.pop("prepare") == keeping.pop("trainer-gpu") == "trainer"  # the trainer uses its output
    assert keeping == {name: name for name in keeping}
    assert keeping.keys() == {"weights", "dataflow", "trainer", "fleet", "web", "maintainer"}


def test_no_secret_is_in_the_compose_file_or_the_image() -> None:
    file = FILE["secrets"]["run-token"]["file"]
    assert file.startswith("./secrets/")
    assert {"secrets", ".env"} <= {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    sent = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert sent[0] == "*"
    assert not {"!secrets", "!.env", "!.git", "!runs"} & set(sent)
    values = {word for service in SERVICES.values() for word in map(str, service.get("environment", {}).values())}
    assert not [value for value in values if re.fullmatch(r"[\w-]{20,}", value)]


def test_the_stop_grace_period_covers_a_drain() -> None:
    assert seconds(SERVICES["node"]["stop_grace_period"]) > float(options("node")["drain-s"]) + 5


def test_restart_policies_match_the_kind_of_service() -> None:
    """Trainer and nodes exit with 0 when finished, and with another code when the engine stops or a process dies."""
    restarts = {name: service["restart"] for name, service in SERVICES.items()}
    assert {name for name, policy in restarts.items() if policy == "no"} == set(ENDS)
    assert {name for name, policy in restarts.items() if policy == "on-failure"} == set(RESTARTED_ON_FAILURE)
    others = restarts.keys() - set(ENDS) - set(RESTARTED_ON_FAILURE)
    assert {restarts[name] for name in others} == {"unless-stopped"}


def test_fleet_and_maintainer_configurations_are_valid() -> None:
    fleet = FleetConfig.parse(read_toml(ROOT / FILE["configs"]["fleet"]["file"]), where="")
    assert fleet.retire_on_stop, "without it the nodes would be killed with the container"
    maintainer = MaintainerConfig.parse(read_toml(ROOT / FILE["configs"]["maintainer"]["file"]), where="")
    assert maintainer.model["kind"] == "scripted"


@pytest.fixture
def run(tmp_path: Path, forking_cli: ForkingProgram) -> Iterator[Composed]:
    """Services with simulated engine and trainer, still without a token."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(ENDLESS)
    environment = {"ASTRAFLOW_RECIPE": str(recipe), "ASTRAFLOW_RUN": "evening"}
    file = compose(environment, profiles=["maintainer"])
    composed = Composed(file=file, directory=tmp_path, cli=forking_cli.command)
    yield composed
    composed.kill()


def give_token(run: Composed) -> None:
    """Writes the run token as the head of docker-compose.yml describes."""
    path = run.secret("run-token")
    path.parent.mkdir(mode=0o700)
    path.write_text(f"{TOKEN}\n")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "token"),
    [("dataflow", "secrets/run-token"), ("weights", "secrets/run-token"), ("node", "volumes/nodes/token")],
)
def test_without_its_token_a_service_does_not_start(run: Composed, name: str, token: str) -> None:
    run.start("keys")
    assert run.processes["keys"].wait() == 0
    done = run.done(name, str(ROOT / "deploy" / "node" / "entrypoint.sh"), *run.services[name]["command"])
    assert done.returncode not in (0, 1), done
    assert str(run.directory / token) in done.stderr


@pytest.mark.long
def test_without_the_authority_a_service_does_not_listen(run: Composed) -> None:
    give_token(run)
    done = run.done("weights", PROGRAM, *run.services["weights"]["command"])
    assert done.returncode == 2
    assert "[authority.not_found]" in done.stderr


@pytest.mark.long  # `make containers` runs the same commands in containers
@pytest.mark.timeout(900)
def test_the_service_commands_make_a_run_that_learns_and_ends(run: Composed) -> None:
    give_token(run)
    for name in run.services:
        run.start(name)
    run.start("node", copy=2)  # ASTRAFLOW_NODES=2
    run.until(lambda: steps(run) >= 5, "five steps")
    run.until(lambda: set(pools(run)) == {"compose"} and len(pools(run)) == 2, "two nodes")
    run.until(lambda: all(run.is_healthy(name) for name in CHECKED), "every health check")
    check_page_shows_the_run(run)
    check_pool_can_be_changed(run)
    minted = run.done("dataflow", PROGRAM, "token", "dataflow:7001", "--pool", "gpu", "--json")
    assert json.loads(minted.stdout)["address"] == run.here("dataflow:7000", {}), minted
    run.until(lambda: "mode propose" in of_the_maintainer(run), "the maintainer has said how it is")
    before = steps(run)
    run.until(lambda: steps(run) > before, "it goes on")
    kept = keys_of(run)
    codes = run.stop()
    expected = {name: 143 if name.split(".")[0] in RESTARTED_ON_FAILURE else 0 for name in codes}
    assert codes == expected
    assert not run.left()
    assert not run.home.exists()
    assert not list(run.working.iterdir())
    assert keys_of(run) == kept


def of_the_maintainer(run: Composed) -> str:
    """Returns the maintainer's status from the command line; empty before it has reported."""
    done = run.done("maintainer", PROGRAM, "maintainer", "status", "--fleet", "fleet:7003")
    assert done.returncode == 0, done
    return done.stdout if "simulated, no model" in done.stdout else ""


def report(run: Composed) -> Any:
    """Returns the run's report from the command at the head of docker-compose.yml."""
    done = run.done("dataflow", PROGRAM, "report", "dataflow:7001", "--once", "--json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def steps(run: Composed) -> int:
    """Returns the number of trainer steps."""
    return int(report(run)["streams"][0]["training"]["steps"])


def pools(run: Composed) -> list[str]:
    """Returns the pool of each ready node."""
    return [node["facts"]["pool"] for node in report(run)["nodes"] if node["state"] == "ready"]


def check_page_shows_the_run(run: Composed) -> None:
    """Logs in to the page with its link, over TLS verified with the run's authority."""
    run.until(lambda: "ready https://" in run.said("web"), "the page")
    assert "token=" not in run.said("web")
    link = run.done("web", PROGRAM, "login-link", "/var/lib/astraflow/web").stdout.strip()
    trusted = ssl.create_default_context(cafile=run.volume("public") / "ca.pem")
    browser = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=trusted),
        urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()),
    )
    with browser.open(link) as reply:
        assert "evening" in reply.read().decode()
    with browser.open(f"{link.split('/login')[0]}/healthz") as reply:
        assert json.load(reply)["feed"] == "live"


def check_pool_can_be_changed(run: Composed) -> None:
    """Makes the fleet service start a node in its container; the node joins with its own token."""
    at = ["--address", "fleet:7003", "--json"]
    plan_output = run.done("fleet", PROGRAM, "fleet", "plan", "here", "--target", "1", "--reason", "a test", *at)
    assert plan_output.returncode == 0, plan_output
    applied = run.done("fleet", PROGRAM, "fleet", "apply", json.loads(plan_output.stdout)["id"], *at)
    assert applied.returncode == 0, applied
    run.until(lambda: "here" in pools(run), "a node of the fleet's")


def keys_of(run: Composed) -> dict[str, bytes]:
    """Returns the key files, which must not change during the run."""
    folders = (run.volume("keys"), run.volume("public"))
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files if path.name != "revoked.json"}


@pytest.mark.long
def test_keys_are_created_once_and_only_public_ones_are_readable(run: Composed) -> None:
    run.start("keys")
    assert run.processes["keys"].wait() == 0
    key_files = keys_of(run)
    run.start("keys")
    assert run.processes["keys"].wait() == 0
    assert keys_of(run) == key_files
    assert Authority.load(run.volume("keys") / "authority").pin == (run.volume("public") / "ca.hash").read_text()
    private = [path for path in run.volume("keys").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}
    public = list(run.volume("public").iterdir())
    assert {path.name for path in public} == {"ca.pem", "ca.hash", "weights.pub"}
    assert {path.stat().st_mode & 0o777 for path in public} == {0o644}


def test_the_documented_token_command_creates_a_readable_token(tmp_path: Path) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    (line,) = re.findall(r"^#\s+(mkdir -m 700 secrets .*)$", text, flags=re.M)
    subprocess.run(["bash", "-c", f"umask 077; {line}"], cwd=tmp_path, check=True)
    token = tmp_path / "secrets" / "run-token"
    assert len(token.read_text().strip()) == 64
    assert token.stat().st_mode & 0o777 == 0o644
    assert token.parent.stat().st_mode & 0o777 == 0o700
