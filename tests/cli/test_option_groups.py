"""Groups of options that several commands share."""

from dataclasses import dataclass, field
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from astraflow.cli.option_groups import with_groups

app = typer.Typer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    size: Annotated[int, typer.Option(help="Size.")] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Base):
    name: Annotated[str, typer.Option(help="Name.")]
    tags: Annotated[list[str], typer.Option(help="Tag.")] = field(default_factory=list)


@app.command()
@with_groups
def show(group: Group, subject: Annotated[str, typer.Argument()], loud: bool = False) -> None:
    """Shows a subject."""
    typer.echo(f"{subject} {loud} {group.size} {group.name} {group.tags}")


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("x --name n", "x False 1 n []"),
        ("--size 2 --name n x --tags a --loud --tags b", "x True 2 n ['a', 'b']"),
    ],
)
def test_a_command_has_the_options_of_its_groups(words: str, output: str) -> None:
    assert CliRunner().invoke(app, words.split()).output.strip() == output


def test_an_option_of_a_group_without_a_default_is_required() -> None:
    assert CliRunner().invoke(app, ["x"]).exit_code == 2


def test_the_own_options_of_a_command_stand_before_those_of_its_groups() -> None:
    names = [parameter.name for parameter in typer.main.get_command(app).params]
    assert names[:5] == ["subject", "loud", "name", "tags", "size"]
