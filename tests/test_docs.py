"""Documents have one of four kinds, name existing commands and files, and their links and pictures have targets."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

from docs.generate import plugins
from docs.generate.pages import PAGES
from tests.words import PROGRAM, command_of, options_of, parsed

ROOT = Path(__file__).parents[1]

DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "recipes/*/*.md", "skills/*.md") for path in ROOT.glob(pattern)
)

KINDS = ("tutorials", "how-to", "reference", "explanation")

WITHOUT_KIND = ("index.md", "benchmarks.md", "benchmarks", "decisions")
"""Documents of no kind: the list of documents, measurements, and history."""

NO_COMMANDS = ("astraflow weights root 1", "astraflow weights manifest 1")
"""Bytes of formats that look like commands."""

NO_FILES = ("maintainer/mode", "maintainer/proposals/ID/approve", "maintainer/transcript")
"""Addresses of the page's API that look like files."""

FOLDERS = ("astraflow", "benchmarks", "deploy", "docs", "maintainer", "recipes", "soak", "tests", "web")

CODE = (".css", ".html", ".js", ".json", ".md", ".proto", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml")

documents = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))

TEXTS = {page.path: (plugins.QUICK if page is plugins.PAGE else page).text for page in PAGES}
"""Pages whose tables come from the code -> their whole text, without plugins whose import takes seconds."""

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.M | re.S)
_INLINE = re.compile(r"`([^`]+)`")
_COMMAND = re.compile(
    r"(?:[A-Z_]+=\S* )*(?:claude mcp add astraflow -- |docker compose exec \w+ )?(?:[\w./]*/)?astraflow (.*)"
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", flags=re.M)
_DOCUMENT = re.compile(r"(?<![\w/])docs/[\w/-]+\.(?:md|toml)\b")


@cache
def text_of(document: Path) -> str:
    """Returns the text that the site has for the document."""
    return TEXTS.get(document, document.read_text)()


def blocks(text: str) -> Iterator[str]:
    """Returns the shell text inside fences."""
    return (content for language, content in _FENCED.findall(text) if language in ("", "sh", "bash"))


def prose(text: str) -> str:
    """Returns the text outside fences."""
    return _FENCED.sub("", text)


def lines_of(block: str) -> list[str]:
    """Returns the lines, with continuation lines joined."""
    return block.replace("\\\n", " ").splitlines()


def typed(line: str) -> list[str]:
    """Returns the arguments of an `astraflow` command without comments, `...` and redirections."""
    matched = _COMMAND.match(line)
    words = shlex.split(matched[1], comments=True) if matched else []
    return [word for word in takewhile(lambda word: word not in (">", "|"), words) if word != "..."]


@documents
def test_commands_in_code_blocks_are_accepted_by_the_command_line(document: Path) -> None:
    for block in blocks(text_of(document)):
        for words in filter(None, map(typed, lines_of(block))):
            assert parsed(words) is not None


@documents
def test_commands_in_sentences_have_the_named_options(document: Path) -> None:
    for span in _INLINE.findall(prose(text_of(document))):
        command_line = " ".join(span.split())
        if (
            not command_line.startswith(f"{PROGRAM} ")
            or command_line in NO_COMMANDS
            or "{" in command_line.partition("--")[0]
        ):
            continue  # a brace: the template of an error message
        for words in each_of(command_line.split()[1:]):
            command, arguments = command_of(words)
            options = {word.split("=")[0] for word in arguments if word.startswith("--")}
            assert options <= options_of(command), command_line


@documents
def test_modules_and_make_targets_in_documents_exist(document: Path) -> None:
    text = text_of(document)
    for module in re.findall(r"python3? -m ([a-z_.]+)", text):
        if module.split(".")[0] in FOLDERS:
            module_path = ROOT.joinpath(*module.split("."))
            assert module_path.with_suffix(".py").exists() or (module_path / "__main__.py").exists(), module
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    for block in blocks(text):
        for line in lines_of(block):
            matched = re.match(r"make ([a-z-]+)(?=\s|$)", line)
            assert matched is None or matched[1] in targets, line


@documents
def test_links_and_pictures_have_existing_targets(document: Path) -> None:
    for target in _LINK.findall(prose(text_of(document))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        target_path = (document.parent / path).resolve() if path else document
        assert target_path.exists(), target
        if anchor:
            assert anchor in map(anchor_of, _HEADING.findall(text_of(target_path))), target


def test_documents_have_one_of_four_kinds_and_answer_a_question() -> None:
    for document in (ROOT / "docs").rglob("*.md"):
        folder = document.relative_to(ROOT / "docs").parts[0]
        assert folder in (*KINDS, *WITHOUT_KIND, "recipes"), document
        assert text_of(document).splitlines()[0].endswith("?"), document


@pytest.mark.parametrize("folder", ["tutorials", "how-to", "explanation", "recipes"])
def test_documents_begin_with_an_example(folder: str) -> None:
    for document in (ROOT / "docs" / folder).glob("*.md"):
        fence = text_of(document).partition("\n```")[0]
        assert len(fence.splitlines()) <= 8, document
        assert "\n## " not in fence, document


def test_each_decision_has_a_date_a_status_and_a_question_in_the_index() -> None:
    folder = ROOT / "docs/decisions"
    index = (folder / "index.md").read_text()
    changed = "(extended|replaced|replaced in part)"
    for document in sorted(folder.glob("*.md")):
        if document.name != "index.md":
            for heading, line in re.findall(r"^## (.*)\n(.*)", text_of(document), flags=re.M):
                assert re.fullmatch(rf"\*\d{{4}}-\d\d-\d\d, (kept|{changed} by \[.*\))\.\*", line), heading
                assert f"]({document.name}#{anchor_of(heading)})" in index, heading


def test_code_and_configuration_name_existing_documents() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    for path in [*paths, *ROOT.glob("*.*"), ROOT / "Makefile"]:
        if path.suffix in CODE or path.name in ("Dockerfile", "Makefile"):
            for named in _DOCUMENT.findall(path.read_text()):
                assert (ROOT / named).exists(), f"{path}: {named}"


@documents
def test_project_files_named_in_documents_exist(document: Path) -> None:
    named = [span for span in _INLINE.findall(prose(text_of(document))) if span.split("/")[0] in FOLDERS]
    for span in named:
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)+/?", span) and span not in NO_FILES:
            assert (ROOT / span).exists(), span


def each_of(words: list[str]) -> list[list[str]]:
    """Expands alternatives: `serve web|fleet --port 1` is two commands, `serve ROLE` none in particular."""
    if words[0] != "serve" or words[1] == "ROLE":
        return [words] if words[0] != "serve" else []
    return [["serve", role, *words[2:]] for role in words[1].split("|")]


def anchor_of(heading: str) -> str:
    """Returns the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
