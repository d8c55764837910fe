"""Regressions from advisories of other projects: received bytes are parsed, never executed, without a shell."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [path for room in ("astraflow", "web", "maintainer") for path in (ROOT / room).rglob("*.py")]

MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
WRITES_PICKLE = ROOT / "astraflow/raas/engines/server/sglang.py"
"""SGLang takes tensors only as a pickle: a constant with a path, written for the own child process, and never read."""
RUNS_JOBS = {ROOT / "astraflow/sandbox/inside/programs.py", ROOT / "astraflow/rewards/code_harness.py"}
"""Run inside of the sandbox only, and run there what a policy wrote."""
CALLS = {"eval", "exec", "os.system", "os.popen", "subprocess.getoutput", "torch.load", "yaml.load"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_can_execute_its_input(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            allowed = {"pickle"} if path == WRITES_PICKLE else set()
            assert not {alias.name.partition(".")[0] for alias in node.names} & MODULES - allowed
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in MODULES
        elif isinstance(node, ast.Call):
            name = _dotted(node.func)
            assert name not in CALLS - ({"exec"} if path in RUNS_JOBS else set()), f"line {node.lineno}: {name}"
            assert name not in ("pickle.load", "pickle.loads", "pickle.Unpickler"), f"line {node.lineno}: {name}"
            assert not name.endswith("create_subprocess_shell")
            if name.startswith("subprocess."):
                assert not [word for word in node.keywords if word.arg == "shell"], f"line {node.lineno}: {name}"


def _dotted(called: ast.expr) -> str:
    """Returns the name of a called function, such as `os.system`; `.eval` for a method of another expression."""
    parts = []
    while isinstance(called, ast.Attribute):
        parts.append(called.attr)
        called = called.value
    return ".".join(reversed([*parts, called.id if isinstance(called, ast.Name) else ""]))
