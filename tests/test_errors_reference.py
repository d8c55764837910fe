"""Error codes, which docs/reference/errors.md lists, are well-formed and unique."""

from collections import Counter
from pathlib import Path

from astraflow.contract import errors
from astraflow.contract.errors import CODE, AstraFlowError
from docs.generate.errors import RaisedError, raised_errors


def test_every_code_is_well_formed_and_belongs_to_one_type() -> None:
    raised = raised_errors()
    assert [raised_error for raised_error in raised if not CODE.fullmatch(raised_error.code)] == []
    types = Counter(code for code, _ in {(raised_error.code, raised_error.type) for raised_error in raised})
    assert [code for code, count in types.items() if count > 1] == []


def test_a_raised_error_is_collected_with_its_message_template(tmp_path: Path) -> None:
    package = tmp_path / "astraflow"
    package.mkdir()
    for other in ("maintainer", "web", "recipes"):
        (tmp_path / other).mkdir()
    (package / "module.py").write_text('raise InvalidInput(f"cannot {path!r}; " "mend", code="module.no_file")\n')
    assert raised_errors(tmp_path) == (
        RaisedError(
            code="module.no_file",
            type="InvalidInput",
            message="cannot {path}; mend",
            module="astraflow.module",
        ),
    )


def test_every_error_type_has_its_own_code() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AstraFlowError)]
    codes = [kind().code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert "unknown_version" in codes
    assert all(CODE.fullmatch(code) for code in codes)
