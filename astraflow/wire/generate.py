"""Generates `pb/` from `protos/`: `python -m astraflow.wire.generate [OUT_DIR]` (needs the `dev` extra)."""

import os
import re
import shutil
import sys
from importlib import resources
from pathlib import Path

_PACKAGE_FOLDER = Path(__file__).parent
_PLAIN_IMPORT = re.compile(r"^import (\w+_pb2)( as \w+)?$", re.MULTILINE)


def generate(out: Path) -> list[Path]:
    """Writes the message and service modules with their type stubs to `out`; returns the written files."""
    from grpc_tools import protoc  # type: ignore[import-untyped]  # ships no types

    protos = sorted((_PACKAGE_FOLDER / "protos").glob("*.proto"))
    well_known = resources.files("grpc_tools") / "_proto"
    arguments = [
        "protoc",
        f"-I{_PACKAGE_FOLDER / 'protos'}",
        f"-I{well_known}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
    ]
    arguments += [_plugin("mypy"), f"--mypy_out=quiet:{out}"]
    arguments += [_plugin("mypy_grpc"), f"--mypy_grpc_out=quiet,only_async:{out}", *map(str, protos)]
    if protoc.main(arguments) != 0:
        raise SystemExit("cannot generate pb/: protoc failed; see its message above")
    written = sorted(path for path in out.iterdir() if "_pb2" in path.name and path.suffix in {".py", ".pyi"})
    for path in written:
        path.write_text(_absolute_imports(path.read_text()))
    return written


def _plugin(name: str) -> str:
    """Returns the path of a protoc plugin: next to this interpreter, whose environment may not be on the path."""
    program = f"protoc-gen-{name}"
    path = shutil.which(program, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if path is None:
        raise SystemExit(f"cannot generate pb/: {program!r} is not installed; install the dev extra")
    return f"--plugin={program}={path}"


def _absolute_imports(source: str) -> str:
    """Makes imports absolute: protoc writes `import x_pb2`, which resolves only with `pb/` on the path."""
    return _PLAIN_IMPORT.sub(r"from astraflow.wire.pb import \1\2", source)


if __name__ == "__main__":
    for generated in generate(Path(sys.argv[1]) if len(sys.argv) > 1 else _PACKAGE_FOLDER / "pb"):
        print(generated)  # noqa: T201 (a command-line tool)
