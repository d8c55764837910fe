"""Commands that look: `report` on a run, `view` at one that ended, `recipes` there are, `doctor` on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from astraflow.cli.options import (
    Address,
    Authority,
    Overrides,
    Port,
    TlsCa,
    TlsClientCertificate,
    TlsClientKey,
    Token,
    TokenFile,
)


def report(
    address: Address = "",
    once: Annotated[bool, typer.Option("--once", help="Print the report as it is now and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each report.")] = False,
    token: Token = "",
    token_file: TokenFile = None,
    authority: Authority = None,
    tls_ca: TlsCa = None,
    tls_client_certificate: TlsClientCertificate = None,
    tls_client_key: TlsClientKey = None,
) -> None:
    """Watch a run in the terminal."""
    from astraflow.cli.local import find_run
    from astraflow.cli.roles import client_tls
    from astraflow.cli.viewer import view

    door = find_run(address, token, token_file)
    tls = client_tls(tls_ca, tls_client_certificate, tls_client_key, authority) or door.tls
    raise typer.Exit(view(door, tls=tls, once=once, as_json=as_json))


def recipes(
    recipe: Annotated[str, typer.Argument(help="Show the settings of this one.")] = "",
    overrides: Overrides = [],  # noqa: B006 (typer copies it)
    folders: Annotated[
        list[Path], typer.Option("--recipes", metavar="DIR", help="A folder with recipes of your own; may be repeated.")
    ] = [],  # noqa: B006 (the same)
    host: Annotated[
        str, typer.Option(help="Where machines elsewhere would join: ports are looked for there.")
    ] = "127.0.0.1",
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Ask the providers of its fleet for prices and leave; starts nothing.")
    ] = False,
    role: Annotated[
        str, typer.Option("--as", metavar="ROLE", help="Refuse what this role may not override from the page.")
    ] = "",
    data: Annotated[
        list[str], typer.Option("--data", metavar="PLACE", help="With --as: a data place; may be repeated.")
    ] = [],  # noqa: B006 (the same)
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with everything a form needs.")] = False,
) -> None:
    """List the recipes that come with AstraFlow and those of your folders, or the settings of one."""
    import json

    from rich.console import Console
    from rich.table import Table

    from astraflow.cli.override_limits import Limits
    from astraflow.cli.recipe_form import form_values, recipe_cards, recipe_form, rehearsed, shown

    limits = Limits(role=role, places=tuple(data)) if role else None
    if recipe and rehearse:
        found: object = (answer := rehearsed(recipe, overrides, folders=folders, limits=limits))
        table = Table("provider", "of pool", "asked for", "answer", box=None)
        for check in answer["checks"]:
            said = check["message"] if check["is_ok"] else f"{check['message']}. {check['to_do']}"
            table.add_row(check["provider"], check["pool"], check["kind"], said)
    elif recipe:
        form = recipe_form(recipe, overrides, folders=folders, host=host, limits=limits)
        table = Table("setting", "value", "what it is", box=None)
        for field in form.fields:
            table.add_row(field.key, shown(field.value), field.description)
        found = form_values(form)
    else:
        cards = recipe_cards(folders)
        table = Table("recipe", "what it does", box=None)
        for card in cards:
            table.add_row(card["name"], card["problem"] or card["summary"])
        found = cards
    if as_json:
        print(json.dumps(found))  # noqa: T201 (for programs, as it is)
    else:
        Console().print(table)


def doctor() -> None:
    """Say what this machine can run, and what is missing."""
    from rich.console import Console

    from astraflow.cli.doctor import examine, table

    findings = examine()
    Console().print(table(findings))
    raise typer.Exit(1 if any(finding.is_needed and not finding.is_good for finding in findings) else 0)


def view(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Directory of a run.")],
    port: Port = 0,
) -> None:
    """Look at a run that ended: its page over a copy of what was recorded, read-only, without its services."""
    from astraflow.cli.reopening import reopen

    raise typer.Exit(reopen(run_dir, port=port, say=typer.echo))
