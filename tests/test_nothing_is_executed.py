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
EVALUATING_METHODS = {"parse_expr", "sympify", "parse_latex", "latex2sympy", "safe_eval"}
"""Functions of packages that evaluate texts as Python, whatever their module is called."""
EVALUATING_PACKAGES = {
    "asteval", "latex2sympy2", "latex2sympy2_extended", "math_verify", "numexpr", "reasoning_gym", "simpleeval",
    "sympy", "textworld",
}  # fmt: skip
"""Packages that evaluate texts as Python."""
USES_EVALUATING_PACKAGES = {
    "astraflow/rewards/reasoning_gym_harness.py": "runs in the sandbox only",
    "astraflow/datasets/generated/reasoning_gym.py": "generates items from settings of the recipe, and reads no text",
    "astraflow/environments/alfworld.py": "replaces the function that evaluates by a parser of its own",
}
"""Why a module may import such a package, or call it."""


@pytest.mark.parametrize("package", ["astraflow", "maintainer", "web"])
def test_no_module_can_execute_its_input(package: str) -> None:
    violations = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, name in _executing(path, ast.parse(path.read_text()))
    ]
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize("package", ["astraflow", "maintainer", "web"])
def test_packages_that_evaluate_texts_are_used_where_that_is_contained(package: str) -> None:
    users = {
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / package).rglob("*.py"))
        if any(_evaluating(ast.parse(path.read_text())))
    }
    assert users <= USES_EVALUATING_PACKAGES.keys()


@pytest.mark.parametrize(
    ("source", "is_user"),
    [
        ("import sympy.parsing", True),
        ("from math_verify import parse", True),
        ("import_module('reasoning_gym.factory')", True),
        ("parser.parse_expr(text)", True),
        ("from astraflow.datasets.generated.reasoning_gym import METADATA", False),
        ("require_package('numpy')", False),
    ],
)
def test_a_use_of_a_package_that_evaluates_is_found(source: str, is_user: bool) -> None:
    assert any(_evaluating(ast.parse(source))) is is_user


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


def _evaluating(module: ast.Module) -> Iterator[str]:
    """Yields uses of packages that evaluate texts."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):
            name = _dotted(node.func)
            is_import = name.endswith("import_module") and node.args and isinstance(node.args[0], ast.Constant)
            names = [str(node.args[0].value)] if is_import and isinstance(node.args[0], ast.Constant) else []
            if name.rpartition(".")[2] in EVALUATING_METHODS:
                yield name
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] in EVALUATING_PACKAGES)


def _dotted(called: ast.expr) -> str:
    """Returns the name of a called function, such as `os.system`; `.eval` for a method of another expression."""
    parts = []
    while isinstance(called, ast.Attribute):
        parts.append(called.attr)
        called = called.value
    return ".".join(reversed([*parts, called.id if isinstance(called, ast.Name) else ""]))
