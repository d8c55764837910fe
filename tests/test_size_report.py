"""The report of size and repetition."""

from pathlib import Path

from tests.size_report import Module, repeated_lines, report

RUN = "".join(f"    value_{number} = {number}\n" for number in range(4))


def module(folder: Path, name: str, text: str) -> Module:
    path = folder / name
    path.write_text(text)
    return Module.read(path)


def test_comments_blank_lines_and_docstrings_do_not_count(tmp_path: Path) -> None:
    read = module(
        tmp_path, "a.py", '"""Words."""\n\n# words\nclass A:\n    """Words\n    of two lines."""\n\n    b = 1\n'
    )

    assert [number for number, _ in read.lines] == [4, 8]
    assert read.classes == 1


def test_a_run_that_stands_twice_is_repeated_in_both_modules(tmp_path: Path) -> None:
    first = module(tmp_path, "a.py", f"def f():\n{RUN}")
    second = module(tmp_path, "b.py", f"def g():\n    pass\n{RUN}")

    assert repeated_lines([first, second], window=4) == {first.path: {2, 3, 4, 5}, second.path: {3, 4, 5, 6}}
    assert not repeated_lines([first, second], window=5)


def test_packages_of_astraflow_have_their_own_lines(tmp_path: Path) -> None:
    (tmp_path / "astraflow/wire").mkdir(parents=True)
    read = module(tmp_path, "astraflow/wire/a.py", f"def f():\n{RUN}")

    lines = list(report([read], tmp_path, window=8, top=1))

    assert lines[1].split() == ["astraflow", "1", "5", "0", "1", "0.0%"]
    assert lines[2].split() == ["astraflow.wire", "1", "5", "0", "1", "0.0%"]
