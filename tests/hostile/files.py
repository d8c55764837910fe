"""Threats of files: data sets, task folders and files of a run that mean harm or are damaged."""

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.hostile.threats import Threats


def damage_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"step": 2', '"step": 3'))


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def replace_by_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


LINES = Threats(
    sender="file",
    way="a line of a data file",
    outcome="refused when the data set opens, with its number and the cause",
    run_by="tests/datasets/files/test_jsonl.py::test_an_invalid_line_is_refused_with_its_number",
    sends={
        "a word": (b'{"question": "q", "answer": "a"}\n{oops}\n', "line 2: not JSON"),
        "NaN": (b'{"question": "q", "answer": NaN}\n', "line 1: not JSON: NaN"),
        "a list": (b"\n[1]\n", "line 2: expected a JSON object"),
        "no answer": (b'{"question": "q"}\n', "line 1: field 'answer' is missing, .*question"),
        "a number as the question": (
            b'{"question": 3, "answer": "a"}\n',
            "line 1: field 'question' is int, expected text",
        ),
        "a truth value as the answer": (b'{"question": "q", "answer": true}\n', "field 'answer' is bool"),
        "a number beyond floats": (
            b'{"question": "q", "answer": 1e400}\n',
            "line 1: not JSON: the number 1e400 is too large",
        ),
        "a nested number beyond floats": (
            b'{"question": "q", "answer": "a", "more": [-1e999]}\n',
            "line 1: not JSON: the number -1e999",
        ),
        "half of a surrogate pair": (
            b'{"question": "\\ud800", "answer": "a"}\n',
            "line 1: it has half of a surrogate pair",
        ),
        "half of a pair in a name": (
            b'{"question": "q", "answer": "a", "\\uDFFF": 1}\n',
            "line 1: it has half of a surrogate pair",
        ),
        "half of a pair in bytes": (b'{"question": "\xed\xa0\x80", "answer": "a"}\n', "line 1: not UTF-8"),
        "bytes that are no UTF-8": (b"\xff\n", "line 1: not UTF-8"),
        "a field twice": (
            b'{"question": "q", "answer": "a", "answer": "b"}\n',
            "line 1: not JSON: the field 'answer' is there twice",
        ),
        "a nested field twice": (
            b'{"question": "q", "answer": "a", "more": [{"x": 1, "x": 1}]}\n',
            "line 1: not JSON: the field 'x'",
        ),
        "deep nesting": (
            b'{"question": "q", "answer": "a", "more": ' + b"[" * 101 + b"]" * 101 + b"}\n",
            "line 1: .*nested more than",
        ),
        "no lines": (b"\n\n", "is empty"),
    },
)
TASK_SETTINGS = Threats(
    sender="file",
    way="settings of a task folder",
    outcome="dataset.invalid_task",
    run_by="tests/environments/terminal/test_environment.py::test_a_task_with_wrong_settings_is_refused",
    sends={
        "no TOML": "not toml",
        "a negative limit": "[verifier]\ntimeout_sec = -1",
        "a word as memory": "[environment]\nmemory = 'much'",
        "a truth value as processors": "[environment]\ncpus = true",
        "an option as the image": "[environment]\ndocker_image = '--privileged'",
        "a mount as the image": "[environment]\ndocker_image = '-v=/:/host'",
        "the root folder as a path": "[verifier]\npaths = ['/']",
        "a path out of a folder": "[verifier]\npaths = ['/srv/../etc']",
        "the tests as a path": "[verifier]\npaths = ['/tests/a']",
    },
)
TASK_LINKS = Threats(
    sender="file",
    way="a link in a task folder",
    outcome="dataset.invalid_task",
    run_by="tests/environments/terminal/test_environment.py"
    "::test_a_task_with_a_link_out_of_its_folder_is_refused_when_the_dataset_opens",
    sends={
        "a file of the host": ("environment/files/data.txt", "/etc/passwd"),
        "a file beside the folder": ("environment/files/data.txt", "../../../outside"),
        "a folder of the host": ("environment/files/more", "/etc"),
        "of the tests": ("tests/expected", "../../outside"),
        "the instruction": ("instruction.md", "/etc/passwd"),
        "nothing": ("environment/files/gone", "missing"),
        "a device": ("solution/device", "/dev/zero"),
    },
)
_CHECKPOINTS: dict[str, Callable[[Path], object]] = {
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "half of a manifest": lambda folder: (folder / "manifest.json").write_text('{"format": 1'),
    "a list as the manifest": lambda folder: (folder / "manifest.json").write_text("[]"),
    "another step in the manifest": damage_manifest,
    "a missing file": lambda folder: (folder / "state" / "empty").unlink(),
    "a changed file": lambda folder: (folder / "state" / "model" / "weights.bin").write_text("weights 3"),
    "a truncated file": lambda folder: (folder / "state" / "model" / "weights.bin").write_text("weights"),
    "one file more": lambda folder: (folder / "state" / "more").touch(),
    "no state": lambda folder: shutil.rmtree(folder / "state"),
    "a deeply nested manifest": lambda folder: (folder / "manifest.json").write_text("[" * 100_000),
    "a flipped bit of the manifest": lambda folder: flip_bit(folder / "manifest.json"),
    "a flipped bit of the weights": lambda folder: flip_bit(folder / "state" / "model" / "weights.bin"),
    "a file in place of the folder": replace_by_file,
}
CHECKPOINTS = Threats(
    sender="file",
    way="damage of a trainer's newest checkpoint",
    outcome="it is set aside with an event, and training goes on from the one before",
    run_by="tests/trainer/test_checkpoints.py::test_a_damaged_checkpoint_is_set_aside_and_the_previous_one_is_loaded",
    sends=_CHECKPOINTS,
)

FILES = (LINES, TASK_SETTINGS, TASK_LINKS, CHECKPOINTS)
