import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from astraflow.cli import main as module
from astraflow.cli.main import app, main
from astraflow.cli.run_directory import RunDirectory

Cli = Callable[..., tuple[int, str]]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs the command line in this process; returns the exit code and the standard error output."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["astraflow", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


def test_own_plugins_are_imported_here_and_in_started_processes(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_PLUGINS", "json")
    file = tmp_path / "plugin_of_the_command_line.py"
    file.write_text("")

    cli("--plugin", str(file), "recipes")

    assert file.stem in sys.modules
    assert os.environ["ASTRAFLOW_PLUGINS"] == f"{file}{os.pathsep}json"


@pytest.mark.parametrize(
    ("arguments", "corrected"),
    [
        (
            ["run", "recipe.toml", "--plugin", "my reward.py", "--headless"],
            "astraflow --plugin 'my reward.py' run recipe.toml --headless",
        ),
        (["check", "reward", "x", "--plugin=a.py"], "astraflow --plugin=a.py check reward x"),
        (["recipes", "--verbose"], "astraflow --verbose recipes"),
    ],
)
def test_an_option_that_stands_before_the_command_is_answered_with_the_corrected_command(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, arguments: list[str], corrected: str
) -> None:
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    code, message = cli(*arguments)
    assert code == 2
    assert corrected in " ".join(message.replace("│", " ").split())
    assert "Possible options" not in message


def test_a_plugin_that_does_not_import_is_refused(cli: Cli) -> None:
    code, message = cli("--plugin", "no.such.module", "recipes")
    assert code != 0
    assert "no.such.module" in message


@pytest.mark.long
def test_help_imports_no_heavy_package() -> None:
    code = (
        "import sys; from astraflow.cli.main import app; from typer.testing import CliRunner\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "print(sorted({'torch', 'transformers', 'grpc', 'pydantic', 'numpy'} & sys.modules.keys()))"
    )
    began = time.perf_counter()
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
    assert time.perf_counter() - began < 5  # it takes half a second; the margin is for a loaded machine


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["demo"],
        ["run"],
        ["join"],
        ["report"],
        ["evaluate", "version"],
        ["evaluate", "endpoint"],
        ["evaluate", "folder"],
        ["plugins"],
        ["prepare"],
        ["doctor"],
        ["recipes"],
    ],
)
def test_every_command_has_help(command: list[str]) -> None:
    assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0


@pytest.mark.parametrize("role", ["dataflow", "weights", "trainer", "node", "model", "web", "fleet", "maintainer"])
def test_every_role_has_help(role: str) -> None:
    assert CliRunner().invoke(app, ["serve", role, "--help"]).exit_code == 0


@pytest.mark.parametrize(
    "command", ["run", "once", "prompt", "replay", "status", "mode", "proposals", "approve", "reject", "eval"]
)
def test_every_maintainer_command_has_help(command: str) -> None:
    assert CliRunner().invoke(app, ["maintainer", command, "--help"]).exit_code == 0


def test_a_maintainer_without_a_fleet_service_is_refused(cli: Cli, tmp_path: Path) -> None:
    code, output = cli(
        "run", "reverse/sort", "--maintainer", "scripted", "--no-web", "--run-dir", str(tmp_path / "run")
    )
    assert code != 0
    assert "[cli.fleet_required]" in output


@pytest.mark.long
def test_recipes_are_listed_with_their_summary() -> None:
    shown = CliRunner().invoke(app, ["recipes"]).output
    assert "reverse/sort" in shown
    assert "without torch" in shown.replace("\n", " ")


def test_the_doctor_lists_its_checks_and_fails_without_disk_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _place: type("Usage", (), {"free": 10**11})())
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == 0
    assert all(what in shown.output for what in ("Python", "cores", "memory", "disk", "ports", "training", "sandbox"))
    monkeypatch.setattr("shutil.disk_usage", lambda _place: type("Usage", (), {"free": 5})())
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "smoek"], 2, "cannot load recipe 'smoek'"),
        (["run", "reverse/srt"], 2, "did you mean 'reverse/sort'"),
        (["run", "recipe.tml"], 2, "'recipe.tml': no such file; check the path [recipe.file_not_found]"),
        (["check", "recipe", "nowhere/recipe.tml"], 2, "no folder 'nowhere'"),
        (["run", "smoke", "--set", "nodes.cuont=3"], 2, "nodes.cuont: unknown key; did you mean 'count'"),
        (["run", "smoke", "--set", "seed"], 2, "cannot parse the override 'seed'"),
        (["run", "smoke", "--host", "0.0.0.0"], 2, "[cli.no_advertised_address]"),  # noqa: S104 (the CLI rejects it)
        (["run", "smoke", "--host", "203.0.113.7"], 2, "[cli.foreign_address]"),
        (["join"], 2, "[cli.no_active_run]"),
        (["report", "127.0.0.1:9"], 2, "[cli.no_token]"),
        (["report", "word-sort-1", "--once"], 2, "[run_folder.unknown]"),
        (["report", "127.0.0.1", "--token", "x", "--once"], 2, "has no port"),
        (["report", "127.0.0.1:9", "--token", "x", "--once"], 1, "[channel.unreachable]"),
        (["join", "127.0.0.1:9", "--token", "x", "--engine", "scriptd"], 2, "did you mean 'scripted'"),
        (["join", "127.0.0.1:9", "--token", "x", "--pull", "{connections = 0}"], 2, "pull.connections"),
        (["join", "127.0.0.1:9", "--token", "x", "--pull", "fast"], 2, "pull"),
        (["join", "127.0.0.1:9", "--token", "x", "--preemption", "htp"], 2, "did you mean 'http'"),
        (
            ["join", "127.0.0.1:9", "--token", "x", "--preemption", "{kind='http', url='http://a.b/'}"],
            2,
            "this machine",
        ),
        (["join", "127.0.0.1:9", "--token", "x", "--name", "a b"], 2, "not a valid name"),
        (["join", "127.0.0.1:9", "--token-file", "/nowhere"], 2, "[cli.unreadable_file]"),
        (["join", "127.0.0.1:9", "--token", "x", "--tls-client-key", "k"], 2, "[tls.incomplete_options]"),
        (["serve", "weights", "smoke", "--tls-key", "k"], 2, "[tls.incomplete_options]"),
        (
            ["serve", "weights", "smoke", "--host", "203.0.113.7"],
            2,
            "cannot listen on '203.0.113.7': without a token",
        ),
        (["serve", "trainer", "smoke/two_policies", "--dataflow", "127.0.0.1:9"], 2, "[trainer.policy_required]"),
        (["serve", "trainer", "smoke", "--dataflow", "127.0.0.1:9", "--policy", "x"], 2, "has no policy 'x'"),
    ],
)
def test_invalid_commands_are_refused_with_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended, output = cli(*arguments)
    assert message in output.replace("\n", " ")
    assert "Traceback" not in output
    assert ended == code


def test_a_mistyped_recipe_file_is_answered_with_the_nearest_file_of_its_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").touch()
    (tmp_path / "empty").mkdir()
    _, message = cli("prepare", str(tmp_path / "recipe.tml"))
    assert f"did you mean '{tmp_path / 'recipe.toml'}'?" in message
    assert "has no recipe.toml" in cli("prepare", str(tmp_path / "empty"))[1]


def test_a_port_in_use_is_refused(cli: Cli, tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert "[cli.port_in_use]" in cli("run", "smoke", "--port", port)[1]
        code, output = cli("serve", "weights", "smoke", "--port", port, "--directory", str(tmp_path / "weights"))
    assert code == 2
    assert "[listen.address_unavailable]" in output
    assert f"127.0.0.1:{port}" in output


def test_an_unwritable_run_directory_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, output = cli("run", "smoke", "--run-dir", str(tmp_path / "file" / "run"))
    assert code == 2
    assert "[storage.unusable]" in output


@pytest.mark.long
def test_a_directory_of_another_run_is_refused(cli: Cli, tmp_path: Path) -> None:
    with RunDirectory.opened(tmp_path / "run", name="x", seed=0, recipe=json.dumps({"name": "x"})) as directory:
        (directory.path / "trainer-solver" / "checkpoints" / "step-00000001").mkdir(parents=True)
    code, output = cli("run", "smoke", "--run-dir", str(tmp_path / "run"))
    assert code == 2
    assert "[run_directory.other_settings]" in output


def test_unexpected_exceptions_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "app", broken)
    with pytest.raises(ZeroDivisionError):
        main()


@pytest.mark.parametrize(
    ("arguments", "recipe", "has_fleet"),
    [([], "reverse", False), (["--fleet"], "reverse", True), (["--pools"], "regions", True)],
)
def test_the_demo_selects_the_recipe_and_the_fleet_by_its_options(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, arguments: list[str], recipe: str, has_fleet: bool
) -> None:
    began: list[tuple[str, bool]] = []

    def run_locally(recipe: Any, options: Any, *_: Any, **__: Any) -> int:
        began.append((recipe.name, options.has_fleet))
        return 0

    monkeypatch.setattr("astraflow.cli.running.local_run.run_locally", run_locally)
    assert cli("demo", "--headless", *arguments)[0] == 0
    assert began == [(recipe, has_fleet)]


PRINTS_NO_DATA = {
    "demo": "its summary goes to the file that --json names",
    "run": "the same",
    "calibrate": "always prints JSON",
    "new": "writes files",
    "export": "writes files",
    "fetch": "writes files",
    "prepare": "writes files",
    "track": "exports data",
    "trajectories": "exports data",
    "audit export": "exports data",
    "check export": "prints one line",
    "chat": "talks",
    "login-link": "prints one link",
    "health": "its exit code is the answer",
    "audit verify": "its exit code is the answer",
    "runs logs": "prints a log",
    "maintainer prompt": "prints a prompt",
    "maintainer replay": "its exit code is the answer",
    "maintainer eval": "writes a file of JSON",
    "maintainer rehearse": "writes a file of JSON",
    "maintainer mode": "changes one value",
    "maintainer wake": "requests one wake",
    "engines install": "writes files",
    "engines remove": "removes files",
    "environments install": "writes files",
    "environments remove": "removes files",
}
"""Commands without `--json`, with the reason; so are those that serve until they are stopped."""
SERVES = ("serve", "ui", "view", "join", "mcp", "maintainer run", "maintainer once")


def commands(group: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns each command by its words."""
    by_name: dict[str, Any] = {}
    for name, command in group.commands.items():
        words = (*path, name)
        by_name.update(commands(command, words) if hasattr(command, "commands") else {" ".join(words): command})
    return by_name


def test_every_command_that_lists_or_reports_prints_json_on_demand() -> None:
    everything = commands(typer.main.get_command(app))
    without = {
        name
        for name, command in everything.items()
        if not any("--json" in option.opts for option in command.params) and not name.startswith(SERVES)
    }
    assert without == PRINTS_NO_DATA.keys() - {"demo", "run"}


def test_the_help_has_six_groups_with_every_command_in_one() -> None:
    group: Any = typer.main.get_command(app)
    panels = {command.rich_help_panel for command in group.commands.values()}
    assert panels == {"Start", "Watch", "Control", "Evaluate and check", "Models and engines", "Services"}
    assert sorted(group.list_commands(None)) == sorted(group.commands)


def test_the_version_is_printed() -> None:
    printed = CliRunner().invoke(app, ["--version"])
    assert (printed.exit_code, printed.output) == (0, f"astraflow {version('astraflow')}\n")


def completed(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("ASTRAFLOW_HOME", str(tmp_path))
    (tmp_path / "runs" / "evening-1").mkdir(parents=True, exist_ok=True)
    environment = {
        "_ASTRAFLOW_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    return CliRunner().invoke(app, [], env=environment, prog_name="astraflow").output.split()


def test_a_shell_completes_recipes_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed("astraflow run reverse/s", tmp_path, monkeypatch) == [
        "reverse/sft",
        "reverse/small_steps",
        "reverse/sort",
    ]
    assert completed("astraflow view ev", tmp_path, monkeypatch) == ["evening-1"]
    assert "reverse" in completed("astraflow recipes re", tmp_path, monkeypatch)
