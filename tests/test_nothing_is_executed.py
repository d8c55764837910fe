"""Regressions from advisories of other projects: received bytes are parsed, never executed, without a shell."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
WRITE_PICKLES = {
    ROOT / "astraflow/raas/engines/server/sglang.py",
    ROOT / "astraflow/raas/engines/server/in_server/astraflow_sglang.py",
}
"""SGLang takes tensors only as a pickle: adapters, written for the own child process, and a constant with a path, which
this process writes itself. None is read."""
RUNS_JOBS = {ROOT / "astraflow/sandbox/inside/programs.py", ROOT / "astraflow/rewards/code_harness.py"}
"""Run inside of the sandbox only, and run there what a policy wrote."""
CALLS = {"eval", "exec", "os.system", "os.popen", "subprocess.getoutput", "torch.load", "yaml.load"}


@pytest.mark.parametrize("package", ["astraflow", "maintainer", "web"])
def test_no_module_can_execute_its_input(package: str) -> None:
    violations = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, name in _executing(path, ast.parse(path.read_text()))
    ]
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import os, dill.source", "dill"),
        ("from pickle import loads", "pickle"),
        ("eval(text)", "eval"),
        ("torch.load(file)", "torch.load"),
        ("pickle.loads(text)", "pickle.loads"),
        ("asyncio.create_subprocess_shell(text)", "asyncio.create_subprocess_shell"),
        ("subprocess.run(text, shell=True)", "subprocess.run"),
        ("subprocess.run(words); model.eval()", None),
    ],
)
def test_a_call_that_executes_its_input_is_reported(source: str, name: str | None) -> None:
    assert list(_executing(ROOT / "astraflow/any.py", ast.parse(source))) == ([(1, name)] if name else [])


def _executing(path: Path, module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields lines and names of imports and calls that can execute bytes or text."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            allowed = {"pickle"} if path in WRITE_PICKLES else set()
            names = {alias.name.partition(".")[0] for alias in node.names}
            yield from ((node.lineno, name) for name in names & MODULES - allowed)
        elif isinstance(node, ast.ImportFrom):
            name = (node.module or "").partition(".")[0]
            if name in MODULES:
                yield node.lineno, name
        elif isinstance(node, ast.Call):
            name = _dotted(node.func)
            if (
                name in CALLS - ({"exec"} if path in RUNS_JOBS else set())
                or name in ("pickle.load", "pickle.loads", "pickle.Unpickler")
                or name.endswith("create_subprocess_shell")
                or (name.startswith("subprocess.") and any(word.arg == "shell" for word in node.keywords))
            ):
                yield node.lineno, name


def _dotted(called: ast.expr) -> str:
    """Returns the name of a called function, such as `os.system`; `.eval` for a method of another expression."""
    parts = []
    while isinstance(called, ast.Attribute):
        parts.append(called.attr)
        called = called.value
    return ".".join(reversed([*parts, called.id if isinstance(called, ast.Name) else ""]))
