"""Builds the site of the documents into build/site: `make docs`. Broken links and missing pictures are errors.

Links between documents also lead out of docs: to recipes, configuration and code. The build therefore works on a folder
with the same tree, which holds the documents and every file that they link to. Needs the packages of
docs/generate/requirements.txt, and the generated pages in build/reference.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "build/site-source"
SITE = ROOT / "build/site"
CONFIG = ROOT / "build/site.yml"
GENERATED = ROOT / "build/reference"
"""Pages with their tables, which `python -m docs.generate build/reference` has written."""

SECTIONS = {
    "Tutorials": "docs/tutorials",
    "How-to": "docs/how-to",
    "Reference": "docs/reference",
    "Explanation": "docs/explanation",
    "Recipes": "docs/recipes",
}
PATTERNS = ("*.md", "docs/**/*.md", "recipes/*/*.md", "skills/*.md")

_LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
_EXTERNAL = re.compile(
    r"""<(?:script|img|iframe)[^>]* src="?https?:|<link[^>]* rel="?stylesheet"?[^>]* href="?https?:"""
)


def main() -> int:
    """Builds the site; returns the exit code."""
    for folder in (SOURCE, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    documents = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
    for document in documents:
        write_source(document)
    configuration = {
        "INHERIT": os.path.relpath(Path(__file__).with_name("site.yml"), CONFIG.parent),
        "docs_dir": SOURCE.name,
        "site_dir": SITE.name,
        "nav": list(navigation(documents)),
    }
    CONFIG.write_text(json.dumps(configuration, indent=2))  # JSON is YAML
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(CONFIG)]
    built = subprocess.run(command, check=False)  # noqa: S603 (its own arguments)
    (SITE / "llms.txt").write_text(llms_text(documents))
    loaded = [str(page) for page in SITE.rglob("*.html") if _EXTERNAL.search(page.read_text())]
    for page in loaded:
        print(f"{page} loads a file from the network", file=sys.stderr)  # noqa: T201 (output of the command)
    return built.returncode or int(bool(loaded))


def write_source(document: Path) -> None:
    """Writes a document, and copies of the files that it links to, below the source folder."""
    generated = GENERATED / document.name
    is_generated = document.parent == ROOT / "docs/reference" and generated.exists()
    text = (generated if is_generated else document).read_text()
    target = SOURCE / document.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(for_site(text))
    for link in _LINK.findall(text):
        linked = (document.parent / link).resolve()
        if linked.is_file() and linked.suffix != ".md":
            copy = SOURCE / linked.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(linked, copy)


def navigation(documents: list[Path]) -> Iterator[dict[str, object]]:
    """Yields the navigation: the README, a section for each kind of document, and the rest."""
    yield {"Start": ["README.md", "docs/index.md"]}
    for section, folder in SECTIONS.items():
        pages = [path for path in documents if path.parent == ROOT / folder]
        yield {section: [entry(path) for path in sorted(pages, key=lambda path: (path.name != "README.md", path))]}
    measurements = [ROOT / "docs/benchmarks.md", *sorted((ROOT / "docs/benchmarks").glob("*.md"))]
    yield {"Skills": [*map(entry, [path for path in documents if path.parent == ROOT / "skills"])]}
    yield {"Measurements": [*map(entry, measurements)]}
    others = [path for path in documents if path.parent == ROOT and path.name != "README.md"]
    examples = [path for path in documents if path.is_relative_to(ROOT / "recipes")]
    decisions = sorted((ROOT / "docs/decisions").glob("*.md"), key=lambda path: (path.name != "index.md", path))
    yield {"Decisions": [*map(entry, decisions)]}
    yield {"Project": [*map(entry, others), {"Recipe folders": [*map(entry, examples)]}]}


def llms_text(documents: list[Path]) -> str:
    """Returns the content of `llms.txt`: the documents by kind, with titles that are questions, for language models."""
    summary = (ROOT / "README.md").read_text().split("\n\n")[1].replace("\n", " ")
    lines = ["# AstraFlow", "", f"> {summary}"]
    for section, folder in {"Skills": "skills", **SECTIONS}.items():
        pages = [entry(path) for path in documents if path.parent == ROOT / folder]
        links = [f"- [{title}]({path.removesuffix('.md')}/)" for page in pages for title, path in page.items()]
        lines += ["", f"## {section}", "", *links]
    return "\n".join(lines) + "\n"


def entry(document: Path) -> dict[str, str]:
    """Returns title and path of a document."""
    title = next(line for line in document.read_text().split("\n") if line.startswith("# "))
    return {title.lstrip("# "): str(document.relative_to(ROOT))}


def for_site(text: str) -> str:
    """Returns the text as Python-Markdown needs it: a blank line before lists and tables, list items indented by four.

    >>> print(for_site("Two:\\n- one\\n  more\\n- two"))
    Two:
    <BLANKLINE>
    - one
        more
    - two
    """
    lines: list[str] = []
    fence, shift, is_list = "", 0, False
    for line in text.split("\n"):
        words = line.lstrip()
        indent = len(line) - len(words)
        if fence:
            lines.append(" " * shift + line if words else line)
            fence = "" if words.startswith(fence) else fence
            continue
        was_list, is_list = is_list, bool(_ITEM.match(words)) or (is_list and (indent > 0 or not words))
        shift = 4 * (indent // 2) - indent if is_list else 0
        if words.startswith("```"):
            fence = "```"
        previous = lines[-1].lstrip() if lines else ""
        begins_list = is_list and not was_list and not previous.startswith("#")
        if previous and (begins_list or words.startswith("|") != previous.startswith("|")):
            lines.append("")
        lines.append(" " * shift + line if words else line)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
