"""Supervisor of terminal tests: programs of the policy reach neither the tests nor the reward."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from astraflow.environments.terminal.policy_programs import ProgramStart, is_of_policy
from astraflow.environments.terminal.runners import supervisor_source
from astraflow.environments.terminal.traced_process import landlock_version
from tests.hostile.policies import FORGE, PROGRAMS_OF_TESTS

_MAIN = "\nimport sys\nsys.exit(main([sys.argv[1]], sys.argv[2:4], sys.argv[4:]))"
SCRIPT_TEST = 'if [ "$(bash p.sh)" = right ]; then echo 1; else echo 0; fi > "$LOGS_DIR/reward.txt"'


@dataclass(frozen=True)
class Tests:
    """Folders of a task, and its tests."""

    __test__ = False
    folder: Path

    @property
    def reward(self) -> str:
        return (self.folder / "logs" / "reward.txt").read_text().strip()

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
        file.chmod(0o755)

    def run(self, test: str) -> subprocess.CompletedProcess[str]:
        """Runs a text as test.sh below the supervisor."""
        app, tests, logs = (str(self.folder / name) for name in ("app", "tests", "logs"))
        self.write("tests/test.sh", f'cd "{app}"\n{test}\n')
        variables = {"PATH": "/usr/bin:/bin", "LOGS_DIR": logs, "TESTS_DIR": tests}
        command = [sys.executable, "-c", supervisor_source() + _MAIN, app, tests, logs, "bash", f"{tests}/test.sh"]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def tests(tmp_path: Path) -> Tests:
    if not landlock_version():
        pytest.skip("the kernel has no Landlock")
    for name in ("app", "tests", "logs"):
        (tmp_path / name).mkdir()
    return Tests(tmp_path)


@pytest.mark.parametrize("program", PROGRAMS_OF_TESTS.cases())
def test_a_program_of_the_policy_writes_no_reward(tests: Tests, program: str) -> None:
    tests.write("app/p.sh", program)
    ended = tests.run(SCRIPT_TEST)
    assert (ended.returncode, tests.reward) == (0, "0")


@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("p", "./p"),
        ("p", "timeout 10 env A=1 ./p"),
        ("p.sh", "bash -eu -o pipefail p.sh"),
        ("p.sh", "sh < p.sh"),
        ("p.py", "python3 -W ignore p.py"),
        ("p.py", "python3 -m p"),
        ("json.py", "python3 -c 'import json'"),
        ("Makefile", "make -s"),
        ("p", "python3 -c 'import subprocess; subprocess.run([\"./p\"])'"),
    ],
)
def test_programs_are_confined_however_the_tests_start_them(tests: Tests, name: str, test: str) -> None:
    python = "import os\nopen(os.environ['LOGS_DIR'] + '/reward.txt', 'w').write('1')\n"
    programs = {"p": f"#!/bin/bash\n{FORGE}\n", "p.sh": FORGE, "Makefile": f"all:\n\t@{FORGE.replace('$', '$$')}\n"}
    tests.write(f"app/{name}", programs.get(name, python))
    tests.run(f'echo 0 > "$LOGS_DIR/reward.txt"\n{test}')
    assert tests.reward == "0"


def test_a_program_whose_output_is_the_file_with_the_reward_writes_nothing_to_it(tests: Tests) -> None:
    program = "#!/usr/bin/env python3\nimport os\nos.write(1, b'1')\nif not os.fork():\n"
    tests.write("app/p", f"{program}    while True:\n        os.lseek(1, 0, 0), os.write(1, b'1')\n")
    ended = tests.run('{ ./p; sleep 0.1; echo 0; } > "$LOGS_DIR/reward.txt"')
    assert (ended.returncode, tests.reward) == (0, "0")


def test_tests_keep_their_rights_and_what_they_leave_running_ends(tests: Tests) -> None:
    tests.write("tests/check.py", "import os, sys\nprint(sys.argv[1])\nopen(os.environ['LOGS_DIR'] + '/a', 'w')\n")
    tests.write("app/out.txt", "x")
    ended = tests.run('python3 "$TESTS_DIR/check.py" out.txt; sleep 600 & echo $! > "$LOGS_DIR/pid"; exit 3')
    assert (ended.returncode, ended.stdout) == (3, "out.txt\n")
    assert (tests.folder / "logs" / "a").exists()
    left = Path("/proc", (tests.folder / "logs" / "pid").read_text().strip(), "stat")
    assert not left.exists() or ") Z " in left.read_text()


def test_a_program_of_the_policy_writes_no_modules_or_settings_of_the_tests(tests: Tests) -> None:
    home = tests.folder / "home"
    module = "open(__import__('os').environ['LOGS_DIR'] + '/reward.txt', 'w').write('1')"
    folder = (
        '"$HOME/.local/lib/$(python3 -c "import sys; print(\'python%d.%d\' % sys.version_info[:2])")/site-packages"'
    )
    tests.write("app/p.sh", f'mkdir -p {folder}; echo "{module}" > {folder}/usercustomize.py')
    home.mkdir()
    ended = tests.run(f'export HOME="{home}"; bash p.sh; echo 0 > "$LOGS_DIR/reward.txt"; python3 -c pass')
    assert (ended.returncode, tests.reward, list(home.iterdir())) == (0, "0", [])


def test_a_right_program_works_as_before(tests: Tests) -> None:
    tests.write("app/data.txt", "rig")
    tests.write(
        "app/p.sh", 'printf "%sht\\n" "$(cat data.txt)" > made && sort made | cat; cd .. ; ls app > /dev/null\n'
    )
    ended = tests.run(SCRIPT_TEST)
    assert (ended.returncode, tests.reward, ended.stderr) == (0, "1", "")


def test_the_status_of_killed_tests_is_128_plus_the_signal(tests: Tests) -> None:
    assert tests.run("kill -9 $$").returncode == 137


@pytest.mark.parametrize(
    ("program", "arguments", "expected"),
    [
        ("/usr/bin/cat", ["cat", "a"], False),
        ("/usr/bin/cmp", ["cmp", "-s", "a", "-"], False),
        ("/usr/bin/python3", ["python3", "-c", "print()", "a"], False),
        ("/usr/bin/bash", ["bash", "-c", "cat a", "a"], False),
        ("/usr/bin/gawk", ["awk", "{print $1}", "a"], False),
        ("/usr/bin/gawk", ["awk", "-f", "a"], True),
        ("/usr/bin/perl5.36", ["perl", "-w", "a"], True),
        ("/usr/bin/node", ["node", "-e", "1", "a"], False),
        ("/usr/bin/node", ["node", "/usr/bin/npm", "test"], True),
        ("/usr/bin/git", ["git", "status"], True),
        ("/usr/bin/bash", ["bash"], False),
    ],
)
def test_programs_of_the_policy_are_told_from_those_that_read_its_files(
    tmp_path: Path, program: str, arguments: list[str], expected: bool
) -> None:
    (tmp_path / "a").touch()
    assert is_of_policy([str(tmp_path)], ProgramStart(program, arguments, str(tmp_path))) is expected


@pytest.mark.parametrize(
    "first_line",
    [
        '/usr/bin/env -S bash -c "echo 1 > {logs}/reward.txt"',
        "/usr/bin/env -S timeout 9 python3 -c \"open('{logs}/reward.txt','w').write('1')\"",
        "/usr/bin/env -S cp -t {logs} {app}/reward.txt",
        "/usr/bin/env -S bash {app}/copy.sh",
    ],
)
def test_the_first_line_of_a_script_of_the_policy_starts_no_program_with_the_rights_of_the_tests(
    tests: Tests, first_line: str
) -> None:
    app, logs = tests.folder / "app", tests.folder / "logs"
    tests.write("app/reward.txt", "1\n")
    tests.write("app/copy.sh", f"cp {app}/reward.txt {logs}")
    tests.write("app/p", f"#!{first_line.format(app=app, logs=logs)}\n")
    tests.run('echo 0 > "$LOGS_DIR/reward.txt"; ./p')
    assert tests.reward == "0"


def test_a_program_of_the_policy_reads_the_files_that_the_tests_name_in_its_arguments_and_no_others(
    tests: Tests,
) -> None:
    tests.write("tests/input", "5\n")
    tests.write("tests/data/input", "6\n")
    tests.write("tests/expected", "secret\n")
    tests.write("app/p.sh", 'cat "$1" "${2#--in=}" "$3"/*; cat "$TESTS_DIR"/expected; echo x >> "$1"')
    tests.write("app/named", f"#!/bin/cat {tests.folder}/tests/expected\n")
    tests.write("app/again", f"#!{tests.folder}/app/named {tests.folder}/tests/expected\n")
    tests.write("app/env", f"#!/usr/bin/env -S cat {tests.folder}/tests/expected\n")
    script = 'cd "$TESTS_DIR"; ln -s "$TESTS_DIR/expected" ../app/link; P=../app/p.sh\n'
    script += 'bash $P input --in="$TESTS_DIR/input" data; bash $P ../app/link; ../app/named; ../app/again; ../app/env'
    run = tests.run(script)
    assert "secret" not in run.stdout
    assert run.stdout.startswith("5\n5\n6\n")
    assert (tests.folder / "tests" / "input").read_text() == "5\n"
