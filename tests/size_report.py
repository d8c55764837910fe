"""Size and repetition of the Python code, by package.

    python -m tests.size_report [--window 8] [--top 15]

Lines exclude blank lines, comments and docstrings. A line is repeated if it lies in a run of `window` such lines that
stands in another place too; imports and closing brackets begin no run. For information: no limit fails.
"""

import argparse
import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

GENERATED = "_pb2"
PACKAGES = ("astraflow", "web", "maintainer", "recipes", "deploy", "docs", "tests", "benchmarks", "soak")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One module: its lines of code, and what it defines."""

    path: Path
    lines: tuple[tuple[int, str], ...]
    """Line numbers and texts, without indentation."""
    classes: int
    functions: tuple[tuple[str, int], ...]
    """Names and lengths, from the line of `def` to the last line."""

    @classmethod
    def read(cls, path: Path) -> "Module":
        """Reads a module. Raises: SyntaxError."""
        text = path.read_text()
        nodes = list(ast.walk(ast.parse(text)))
        silent = {line for node in nodes for line in _docstring_lines(node)}
        lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
        defined = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        return cls(
            path=path,
            lines=tuple((number, line) for number, line in lines if line and line[0] != "#" and number not in silent),
            classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
            functions=tuple((node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in defined),
        )


def modules(root: Path) -> list[Module]:
    """Returns the modules in git, without generated ones."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [Module.read(root / name) for name in listed.splitlines() if GENERATED not in name]


def repeated_lines(code: Sequence[Module], window: int) -> dict[Path, set[int]]:
    """Returns the line numbers of each module that lie in a run which stands elsewhere too."""
    places: dict[tuple[str, ...], list[tuple[Module, int]]] = defaultdict(list)
    for module in code:
        texts = [line for _, line in module.lines]
        for begin in range(len(texts) - window + 1):
            if not texts[begin].startswith(("import ", "from ", ")", "]", "}")):
                places[tuple(texts[begin : begin + window])].append((module, begin))
    repeated: dict[Path, set[int]] = defaultdict(set)
    for where in places.values():
        for module, begin in where if len(where) > 1 else ():
            repeated[module.path].update(number for number, _ in module.lines[begin : begin + window])
    return repeated


def report(code: Sequence[Module], root: Path, *, window: int, top: int) -> Iterator[str]:
    """Yields the lines of the report."""
    repeated = repeated_lines(code, window)
    yield f"{'package':24} {'modules':>7} {'lines':>7} {'classes':>7} {'functions':>9} {'repeated':>8}"
    groups: dict[str, list[Module]] = defaultdict(list)
    for module in code:
        parts = module.path.relative_to(root).parts
        if parts[0] in PACKAGES:
            groups[parts[0]].append(module)
            if parts[0] == "astraflow" and len(parts) > 2:
                groups[f"  astraflow.{parts[1]}"].append(module)
    for name, members in sorted(groups.items(), key=lambda item: item[0].strip()):
        lines = sum(len(module.lines) for module in members)
        share = sum(len(repeated[module.path]) for module in members) / max(1, lines)
        functions = sum(len(module.functions) for module in members)
        classes = sum(module.classes for module in members)
        yield f"{name:24} {len(members):7} {lines:7} {classes:7} {functions:9} {share:8.1%}"
    yield from _largest("longest modules", [(len(module.lines), module.path) for module in code], root, top)
    functions_by_length = [(length, module.path / name) for module in code for name, length in module.functions]
    yield from _largest("longest functions", functions_by_length, root, top)
    yield from _largest("most repeated lines", [(len(lines), path) for path, lines in repeated.items()], root, top)


def _largest(title: str, sizes: Sequence[tuple[int, Path]], root: Path, top: int) -> Iterator[str]:
    yield f"\n{title}"
    yield from (f"{size:7} {path.relative_to(root)}" for size, path in sorted(sizes, reverse=True)[:top])


def _docstring_lines(node: ast.AST) -> range:
    """Returns the lines of a text that is a statement, such as a docstring."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(0)


def main() -> None:
    """Prints the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--top", type=int, default=15)
    options = parser.parse_args()
    root = Path(__file__).parents[1]
    for line in report(modules(root), root, window=options.window, top=options.top):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
