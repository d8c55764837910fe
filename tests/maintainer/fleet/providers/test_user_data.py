"""The boot script installs, joins and ends the machine: executed with a substitute for the node program."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from astraflow.contract.errors import InvalidInput
from maintainer.fleet.providers.ec2.user_data import BootOptions, boot_script
from tests.errors import raises_code
from tests.maintainer.fleet.providers.test_local_process import SLEEPER

TOKEN = "afj.canary-token"
FOR_EVER = 4_000_000_000.0
JOIN = ("join", "127.0.0.1:1", "--pool", "eu")
NODE_STARTED = "I am the node:"

TELLER = """import json, pathlib, sys
said = {"argv": sys.argv[2:], "token": pathlib.Path(sys.argv[-1]).read_text()}
pathlib.Path(sys.argv[1]).write_text(json.dumps(said))
"""
"""Python code that records its arguments and the content of the file that its last argument names."""


class Machine:
    """Folder that simulates a machine."""

    def __init__(self, folder: Path) -> None:
        self.place = folder
        self.ended = folder / "ended"
        (folder / "teller.py").write_text(TELLER)

    def options(self, **changes: Any) -> BootOptions:
        defaults: dict[str, Any] = {
            "program": (sys.executable, str(self.place / "teller.py"), str(self.place / "told")),
            "secrets": str(self.place / "run" / "astraflow"),
            "directory": str(self.place / "opt"),
            "end": ("touch", str(self.ended)),
        }
        return BootOptions.parse(defaults | changes, where="boot")

    def start(self, *, expires_at: float = FOR_EVER, **changes: Any) -> subprocess.Popen[str]:
        options = self.options(**changes)
        script = boot_script(options, join=JOIN, token=TOKEN, expires_at=expires_at)
        (self.place / "user-data").write_text(script)
        return subprocess.Popen(
            ["/bin/sh", str(self.place / "user-data")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": os.environ["PATH"]},
        )

    def run(self, **changes: Any) -> tuple[int, str]:
        """Runs the boot script; returns exit status and output."""
        process = self.start(**changes)
        output, _ = process.communicate(timeout=30)
        return process.returncode, output


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_node_gets_the_address_and_the_tokens_path(machine: Machine) -> None:
    status, output = machine.run()
    assert (status, machine.ended.exists()) == (0, True)
    received = (machine.place / "told").read_text()
    secret = machine.place / "run" / "astraflow" / "token"
    assert json.loads(received) == {"argv": [*JOIN, "--token-file", str(secret)], "token": f"{TOKEN}\n"}
    assert TOKEN not in output
    assert not (machine.place / "run" / "astraflow").exists()


def test_the_tokens_file_is_private_and_on_no_command_line(machine: Machine) -> None:
    process = machine.start(program=SLEEPER)
    token = machine.place / "run" / "astraflow" / "token"
    _await(lambda: token.exists() and token.read_text() != "" and len(_family(process.pid)) >= 3)
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.parent.stat().st_mode & 0o777 == 0o700
    lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in _family(process.pid)]
    assert not [line for line in lines if TOKEN in line]
    process.terminate()
    process.communicate(timeout=30)


def test_a_terminated_machine_ends_its_node_first(machine: Machine) -> None:
    process = machine.start(program=SLEEPER)
    _await(lambda: len(_family(process.pid)) >= 3)  # the script, timeout, the node
    family = _family(process.pid)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert machine.ended.exists()
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]


def test_a_machine_ends_at_its_expiry(machine: Machine) -> None:
    began = time.monotonic()
    status, _ = machine.run(program=SLEEPER, expires_at=time.time() + 2.0)
    assert (status, machine.ended.exists()) == (124, True)
    assert time.monotonic() - began < 20.0
    status, output = machine.run(expires_at=time.time() - 1.0)
    assert status == 124
    assert "has expired" in output


def test_commands_before_the_node_run_in_order_and_a_failure_ends_the_machine(machine: Machine) -> None:
    marks = [str(machine.place / name) for name in ("a", "b", "c")]
    status, output = machine.run(
        before=(("touch", marks[0]), ("test", "-e", marks[0]), ("false",), ("touch", marks[2]))
    )
    assert (status, machine.ended.exists()) == (1, True)
    (failure,) = [line for line in output.splitlines() if "failed" in line]
    assert "false" in failure
    assert "status 1" in failure
    assert not Path(marks[2]).exists()
    assert not (machine.place / "told").exists()


def test_a_hanging_install_ends_the_machine(machine: Machine) -> None:
    status, output = machine.run(before=(("sleep", "600"),), install_s=1)
    assert (status, machine.ended.exists()) == (124, True)
    assert "sleep failed" in output


def test_a_custom_install_command_provides_the_program(machine: Machine) -> None:
    program = machine.place / "opt" / "bin" / "astraflow"
    teller = str(machine.place / "teller.py")
    status, _ = machine.run(
        before=(("mkdir", "-p", str(program.parent)), ("ln", "-s", sys.executable, str(program))),
        program=(str(program), teller, str(machine.place / "told")),
    )
    assert status == 0
    assert TOKEN in (machine.place / "told").read_text()


@pytest.mark.long
@pytest.mark.slow
def test_a_wheel_is_installed_into_its_own_environment(machine: Machine) -> None:
    """Installs a generated wheel with an `astraflow` program, without a package index."""
    wheel = _wheel(machine.place)
    status, output = machine.run(program=(), wheel=str(wheel), wheelhouse=str(machine.place), python=sys.executable)
    assert status == 7, output
    (started,) = [line for line in output.splitlines() if line.startswith(NODE_STARTED)]
    arguments = started.removeprefix(NODE_STARTED).split()
    assert arguments[:5] == ["join", "127.0.0.1:1", "--pool", "eu", "--token-file"]
    assert machine.ended.exists()


def test_an_image_gets_its_token_from_a_file_that_docker_reads(machine: Machine) -> None:
    bin_ = machine.place / "bin"
    bin_.mkdir()
    (bin_ / "docker").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{machine.place}/argv\ncp "$8" {machine.place}/env\n')
    (bin_ / "docker").chmod(0o700)
    script = boot_script(
        machine.options(program=(), image="registry.local/node:1", image_options=()),
        join=JOIN,
        token=TOKEN,
        expires_at=FOR_EVER,
    )
    path = f"{bin_}:{os.environ['PATH']}"
    subprocess.run(["/bin/sh"], input=script, text=True, check=True, env={"PATH": path}, timeout=30)
    argv = (machine.place / "argv").read_text().split()
    assert argv[:6] == ["run", "--rm", "--name", "astraflow", "--network", "host"]
    assert argv[8:] == ["registry.local/node:1", *JOIN]
    assert (machine.place / "env").read_text() == f"ASTRAFLOW_TOKEN={TOKEN}\n"


@pytest.mark.parametrize(
    "hostile", ["$(touch {})", "`touch {}`", "'; touch {}; '", "a\ntouch {}\n", '"; touch {}; "', "@END@ {}"]
)
def test_values_are_never_run_as_code(machine: Machine, hostile: str) -> None:
    mark = machine.place / "pwned"
    text = hostile.format(mark)
    script = boot_script(machine.options(), join=("join", text), token=text, expires_at=FOR_EVER)
    done = subprocess.run(
        ["/bin/sh"], input=script, text=True, check=False, env={"PATH": os.environ["PATH"]}, timeout=30
    )
    assert done.returncode == 0
    assert not mark.exists()
    assert machine.ended.exists()


@pytest.mark.needs("shellcheck")
@pytest.mark.parametrize(
    "way", [{"program": ("/bin/astraflow",)}, {"wheel": "https://example.org/astraflow.whl"}, {"image": "node:1"}]
)
def test_the_script_passes_shellcheck(way: dict[str, Any]) -> None:
    options = BootOptions.parse({**way, "before": (("mount", "/data"),)}, where="boot")
    script = boot_script(options, join=JOIN, token=TOKEN, expires_at=FOR_EVER)
    done = subprocess.run(["shellcheck", "-"], input=script, text=True, capture_output=True, check=False, timeout=30)
    assert done.stdout == ""


def test_no_script_names_a_package_index() -> None:
    options = BootOptions.parse({"wheel": "/mnt/astraflow.whl"}, where="boot")
    script = boot_script(options, join=JOIN, token=TOKEN, expires_at=FOR_EVER)
    assert "index-url" not in script
    assert "://" not in script


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "none of them"),
        ({"wheel": "x", "image": "y"}, "wheel and image"),
        ({"program": ("astraflow",)}, "absolute path"),
        ({"program": ("/x",), "secrets": "run"}, "absolute path"),
        ({"program": ("/x",), "end": ()}, "command"),
        ({"weel": "x"}, "wheel"),
    ],
)
def test_invalid_options_are_refused_with_valid_values(values: dict[str, Any], message: str) -> None:
    with raises_code(InvalidInput, "config.invalid", message):
        BootOptions.parse(values, where="boot")


def _family(pid: int) -> list[int]:
    """Returns the ids of a process and all its descendants."""
    pids = [pid]
    for parent in pids:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            pids += [int(child) for child in task.read_text().split()]
    return pids


def _await(holds: Any) -> None:
    deadline = time.monotonic() + 20.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _wheel(folder: Path) -> Path:
    """Writes the smallest wheel that pip accepts."""
    import zipfile

    path, info = folder / "astraflow-0.1-py3-none-any.whl", "astraflow-0.1.dist-info"
    files = {
        "astraflow.py": f"import sys\ndef main():\n    print({NODE_STARTED!r}, *sys.argv[1:])\n    sys.exit(7)\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: astraflow\nVersion: 0.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nastraflow = astraflow:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path
