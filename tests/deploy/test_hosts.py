"""Scripts of Slurm, tasks of SkyPilot and units of systemd: their commands and variables exist, and signals work.

Scripts run with substitutes for `astraflow` and `scontrol` that record their arguments; the real command line parses
what they recorded. `tests/deploy/test_slurm.py` runs the scripts on a real cluster.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from astraflow.recipe.loading import Check, load_recipe
from tests.words import parsed

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCRIPTS = sorted((DEPLOY / "slurm").glob("*.sh"))
TASKS = sorted((DEPLOY / "skypilot").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROGRAM = "/opt/astraflow/bin/astraflow"

SUBSTITUTE = f"""#!{sys.executable} -SE
import json, os, pathlib, sys, time
words = [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]
with open(os.environ["RECORD"], "a") as record:
    record.write(json.dumps(words) + "\\n")
if words[1] == "token":
    pathlib.Path(words[words.index("--out") + 1]).write_text("afj.token")
if words[1] == os.environ.get("WAITS"):
    time.sleep(600)
if words[1] == "run":
    address = pathlib.Path(words[words.index("--run-dir") + 1], "join", "address")
    while not address.exists():
        time.sleep(0.01)
sys.exit(int(os.environ.get("CODE", "0")))
"""


@dataclass(frozen=True, slots=True)
class Host:
    """A host with substitutes for the programs that scripts call."""

    folder: Path

    def start(self, script: Path | str, *words: str, **variables: str) -> subprocess.Popen[str]:
        """Starts a script, or the text of one."""
        text = ["-c", script] if isinstance(script, str) else [str(script), *words]
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "RECORD": str(self.folder / "record"),
            "ASTRAFLOW_HOST": "127.0.0.1",
            **variables,
        }
        return subprocess.Popen(
            ["bash", *text], env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def calls(self) -> list[list[str]]:
        """Returns the recorded commands in order."""
        record = self.folder / "record"
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []

    def until_call(self, command: str) -> None:
        """Waits until a script has called this command."""
        last = time.monotonic() + 30
        while command not in [words[1] for words in self.calls()]:
            assert time.monotonic() < last, self.calls()
            time.sleep(0.01)

    def options(self, command: str) -> dict[str, Any]:
        """Returns the options of the recorded `astraflow` command, as the command line reads them."""
        (words,) = [words[1:] for words in self.calls() if words[1] == command]
        return parsed(words).params


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "bin").mkdir()
    for program in ("bin/astraflow", "bin/scontrol", "astraflow/bin/astraflow", "astraflow/bin/pip"):
        path = tmp_path / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SUBSTITUTE)
        path.chmod(0o755)
    return Host(tmp_path)


def test_a_run_writes_the_address_and_the_token_and_ends_with_the_code_of_the_run(host: Host) -> None:
    directory = host.folder / "run"
    words = ("smoke", str(directory), "--set", "stop.steps=3", "--no-web")
    process = host.start(SCRIPTS[1], *words, ASTRAFLOW_ADVERTISE="gpu-1", ASTRAFLOW_PORTS="7100")
    assert "nodes can join at gpu-1:7100" in process.communicate(timeout=60)[0]
    assert process.returncode == 0
    run, token = host.options("run"), host.options("token")
    load_recipe(run["recipe"], run["overrides"], check=Check.LIGHT)
    assert (run["run_dir"], run["nodes"], run["headless"], run["ports"]) == (directory, 0, True, 7100)
    assert (run["host"], run["advertise"]) == ("127.0.0.1", "gpu-1")
    assert token["address"] == "127.0.0.1:7101"
    assert token["reusable"] and token["out"] == directory / "join" / "token"
    assert (directory / "join" / "ended").exists()
    assert not (directory / "join" / "address").exists()


@pytest.mark.parametrize(("number", "queues_again"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_the_time_limit_queues_the_run_again_and_a_cancellation_does_not(
    host: Host, number: signal.Signals, queues_again: bool
) -> None:
    directory = host.folder / "run"
    process = host.start(SCRIPTS[1], "smoke", str(directory), WAITS="run", SLURM_JOB_ID="17")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("nodes can join")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert (
        [words for words in host.calls() if words[0] == "scontrol"] == [["scontrol", "requeue", "17"]]
    ) is queues_again
    assert (directory / "join" / "ended").exists() is not queues_again
    assert process.returncode == (0 if queues_again else 128 + signal.SIGTERM)


def joinable(host: Host) -> Path:
    """Returns the directory of a run that nodes can join."""
    join = host.folder / "run" / "join"
    join.mkdir(parents=True)
    (join / "address").write_text("gpu-1:7000\n")
    (join / "token").write_text("afj.token")
    return join.parent


def test_a_node_joins_at_the_address_of_the_run(host: Host) -> None:
    directory = joinable(host)
    process = host.start(SCRIPTS[0], str(directory), "--capacity", "8")
    process.communicate(timeout=60)
    options = host.options("join")
    assert process.returncode == 0
    assert (options["address"], options["token_file"]) == ("gpu-1:7000", directory / "join" / "token")
    assert options["capacity"] == 8


def test_a_stopped_node_ends_and_a_refused_one_does_not_try_again(host: Host) -> None:
    directory = joinable(host)
    stopped = host.start(SCRIPTS[0], str(directory), WAITS="join")
    host.until_call("join")
    stopped.send_signal(signal.SIGTERM)
    stopped.communicate(timeout=60)
    assert stopped.returncode == 128 + signal.SIGTERM
    refused = host.start(SCRIPTS[0], str(directory), CODE="2")
    refused.communicate(timeout=60)
    assert refused.returncode == 2
    assert [words[1] for words in host.calls()] == ["join", "join"]


@pytest.mark.parametrize(
    ("script", "words", "code"), [(SCRIPTS[0], ("/nowhere",), 69), (SCRIPTS[0], (), 64), (SCRIPTS[1], ("smoke",), 64)]
)
def test_a_missing_argument_or_address_is_reported(host: Host, script: Path, words: tuple[str, ...], code: int) -> None:
    process = host.start(script, *words, ASTRAFLOW_WAIT_S="0")
    output = process.communicate(timeout=60)[0]
    assert process.returncode == code
    assert output.startswith("error: cannot ")
    assert host.calls() == []


@pytest.mark.needs("shellcheck")
def test_the_scripts_pass_shellcheck() -> None:
    done = subprocess.run(["shellcheck", *SCRIPTS], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == ""


def task(name: str) -> dict[str, Any]:
    """Returns a task of SkyPilot."""
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "skypilot" / f"{name}.yaml").read_text())
    return content


def test_the_tasks_start_a_run_and_a_node_with_valid_commands(host: Host) -> None:
    run, node = task("run"), task("node")
    started = host.start(run["run"], **run["envs"] | {"ASTRAFLOW_ADVERTISE": "203.0.113.7"})
    started.communicate(timeout=60)
    joined = host.start(node["run"], **node["envs"] | {"ASTRAFLOW_ADDRESS": "203.0.113.7:7000"}, **node["secrets"])
    joined.communicate(timeout=60)
    assert (started.returncode, joined.returncode) == (0, 0)
    options = host.options("run")
    load_recipe(options["recipe"], options["overrides"], check=Check.NONE)
    assert options["advertise"] == "203.0.113.7"
    assert run["resources"]["ports"] == f"{options['ports']}-{options['ports'] + 2}"
    assert host.options("join")["address"] == "203.0.113.7:7000"
    assert (run["resources"]["use_spot"], node["resources"]["use_spot"]) == (False, True)


def test_a_task_without_the_address_of_its_host_starts_nothing(host: Host) -> None:
    run = task("run")
    process = host.start(run["run"], **run["envs"])
    assert "sky exec" in process.communicate(timeout=60)[0]
    assert (process.returncode, host.calls()) == (0, [])


@pytest.mark.parametrize("name", ["run", "node"])
def test_the_setup_of_a_task_installs_existing_extras(name: str) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    (extras,) = re.findall(r"'\.\[([a-z,]+)\]'", task(name)["setup"])
    assert all(re.search(rf"^{extra} = \[", project, flags=re.M) for extra in extras.split(","))
    for words in re.findall(r'bin/astraflow" (.+)$', task(name)["setup"], flags=re.M):
        parsed(shlex.split(words))


def settings() -> dict[str, str]:
    """Returns the variables of the units' file of settings."""
    lines = (DEPLOY / "systemd" / "astraflow.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def commands_of(unit: Path) -> Iterator[list[str]]:
    """Yields the words after the program of each command of a unit, with its variables replaced."""
    variables = settings() | {"CREDENTIALS_DIRECTORY": "/run/credentials/unit"}
    for command in re.findall(r"^Exec\w+=(.+)$", unit.read_text().replace("\\\n", " "), flags=re.M):
        program, *words = shlex.split(re.sub(r"\$\{(\w+)\}", lambda name: variables[name[1]], command))
        assert program == PROGRAM
        yield words


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_commands_of_a_unit_are_accepted_and_write_only_to_its_folders(unit: Path) -> None:
    folders = [f"/var/lib/{name}" for name in re.findall(r"^StateDirectory=(.+)$", unit.read_text(), re.M)[0].split()]
    commands = list(commands_of(unit))
    assert commands
    for words in commands:
        options = parsed(words).params
        written = [options[name] for name in ("directory", "public") if options.get(name) is not None]
        assert all(any(path.is_relative_to(folder) for folder in folders) for path in written)


def test_services_of_a_host_use_one_address_and_different_ports() -> None:
    options = {unit.stem: parsed(list(commands_of(unit))[-1]).params for unit in UNITS}
    dataflow, weights = options["astraflow-dataflow"], options["astraflow-weights"]
    address = settings()["ASTRAFLOW_ADVERTISE"]
    assert dataflow["weights"] == f"{address}:{weights['port']}"
    assert dataflow["advertise"] == weights["advertise"] == [address]
    for name in ("astraflow-trainer", "astraflow-web"):
        assert options[name]["dataflow"] == f"{address}:{dataflow['port']}"
    assert (
        options["astraflow-node"]["address"]
        == f"{address}:{dataflow['enroll_port']}"
        == settings()["ASTRAFLOW_ADDRESS"]
    )


@pytest.mark.needs("systemd")
def test_systemd_accepts_the_units_and_finds_them_hardened(tmp_path: Path) -> None:
    units = tmp_path / "etc" / "systemd" / "system"
    shutil.copytree(DEPLOY / "systemd", units)
    program = tmp_path / PROGRAM.removeprefix("/")
    program.parent.mkdir(parents=True)
    shutil.copy("/bin/true", program)
    for target in ("basic", "multi-user", "network-online", "shutdown", "sysinit"):
        (units / f"{target}.target").write_text("[Unit]\n")
    names = [unit.name for unit in UNITS]

    def analysis(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["systemd-analyze", f"--root={tmp_path}", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    security = analysis("security", "--offline=yes", "--threshold=35", *names)
    assert security.returncode == 0, security.stdout
    assert analysis("verify", *names).stderr == ""
    (units / names[0]).write_text("[Service]\nType=never\nExecStart=/missing\n")
    assert analysis("verify", names[0]).returncode != 0  # the check can fail


def test_all_variables_are_read_by_the_program_or_by_a_script() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "astraflow").rglob("*.py"))
    scripts = "\n".join(path.read_text() for path in (*SCRIPTS, *TASKS, *UNITS))
    own = set(re.findall(r"\$\{?(ASTRAFLOW_\w+)", scripts))
    for name in {*re.findall(r"ASTRAFLOW_\w+", scripts), *settings()} - own:
        assert f'"{name}"' in sources, name
