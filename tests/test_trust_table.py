"""The tables of docs/explanation/security.md on who is trusted with what agree with the code."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from astraflow.access.callers import GRANTS, Role
from astraflow.runtime.config.setting_permissions import SettableBy
from astraflow.wire.routes import ROUTES
from tests.runtime.processes.test_child_environment import STARTS
from web.security.roles import ROLE_PERMISSIONS, Permission
from web.security.roles import Role as PageRole

PAGE = Path(__file__).parents[1] / "docs/explanation/security.md"
SECTION = "## Who is trusted with what?"
USERS = (PageRole.VIEWER, PageRole.AGENT, PageRole.OPERATOR, PageRole.ADMIN)


def tables() -> Iterator[list[list[str]]]:
    """Yields the tables of the section: rows of cells, without the head."""
    _, _, rest = PAGE.read_text().partition(SECTION)
    text, _, _ = rest.partition("\n## ")
    for block in text.split("\n\n"):
        rows = [line.split("|")[1:-1] for line in block.splitlines() if line.startswith("|")]
        if rows:
            yield [[cell.strip() for cell in row] for row in rows[2:]]


def code(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def route_rows() -> list[list[str]]:
    """Returns routes with the roles that may call them, except the run token, which may call all."""
    by_roles: dict[frozenset[Role], list[str]] = defaultdict(list)
    for path, route in ROUTES.items():
        service, _, method = path.removeprefix("/").rpartition("/")
        by_roles[route.roles - {Role.ADMIN}].append(f"{service.rpartition('.')[2]}.{method}")
    order = list(Role)
    return [
        [code(role.value for role in sorted(roles, key=order.index)) or "the run token only", code(names)]
        for roles, names in by_roles.items()
    ]


def grant_rows() -> list[list[str]]:
    order = list(Role)
    return [
        [code([role.value]), code(each.value for each in sorted(granted, key=order.index))]
        for role, granted in GRANTS.items()
    ]


def permission_rows() -> list[list[str]]:
    return [
        [permission.value, *("yes" if permission in ROLE_PERMISSIONS[role] else "" for role in USERS)]
        for permission in Permission
    ]


def setting_rows() -> list[list[str]]:
    return [[code([each.value]), *("yes" if each.allows(role.value) else "" for role in USERS)] for each in SettableBy]


def child_rows() -> list[list[str]]:
    return [[f"`{module}`", reason] for module, reason in STARTS.items()]


def test_the_tables_of_trust_agree_with_the_code() -> None:
    documented = list(tables())
    assert documented[0] == route_rows()
    assert documented[1] == grant_rows()
    assert documented[2] == permission_rows()
    assert documented[3] == setting_rows()
    assert documented[4] == child_rows()
    assert len(documented) == 6, "the last one, on code and files of others, is written by hand"


def test_no_user_of_the_page_may_do_what_the_run_token_alone_may() -> None:
    allowed = {role for granted in GRANTS.values() for role in granted}
    assert Role.ADMIN not in allowed
    assert not any(SettableBy.RECIPE.allows(role.value) for role in PageRole)
