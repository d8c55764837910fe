"""Users, logins, and the audit log through the API: the pages' commands, once per idempotency key."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.fakes.control_plane import FakeControlPlane
from tests.fakes.web import RunningWeb

pytestmark = pytest.mark.anyio

REASON = "for the test"


async def send(client: httpx.AsyncClient, method: str, path: str, key: str, **body: Any) -> httpx.Response:
    """Sends a change with a reason and an idempotency key."""
    content = {"reason": REASON, **body}
    return await client.request(method, f"/api/v1/{path}", json=content, headers={"idempotency-key": key})


async def items(client: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    """Returns the items of a list."""
    answer = await client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    listed_items: list[dict[str, Any]] = answer.json()["items"]
    return listed_items


async def test_a_user_is_added_invited_given_a_role_disabled_and_enabled(web: RunningWeb) -> None:
    async with web.logged_in() as admin, web.client() as ada:
        added = await send(admin, "POST", "users", "a", name="ada", role="viewer")
        assert added.status_code == 201
        assert (await ada.get(added.json()["login_link"])).status_code == 303
        again = await send(admin, "POST", "users", "a", name="ada", role="viewer")
        assert (again.status_code, again.json()["login_link"]) == (201, None)
        number = added.json()["user"]["id"]

        changed = await send(admin, "PUT", f"users/{number}/role", "b", role="operator")
        assert changed.json()["role"] == "operator"
        assert (await ada.get("/audit.csv")).status_code == 200
        locked = await send(admin, "POST", f"users/{number}/disable", "c")
        assert locked.json()["is_disabled"] is True
        assert (await ada.get("/api/v1/session")).status_code == 401
        assert (await send(admin, "POST", f"users/{number}/link", "d")).status_code == 409
        assert (await send(admin, "POST", f"users/{number}/enable", "e")).json()["is_disabled"] is False
        invited = await send(admin, "POST", f"users/{number}/link", "f")
        assert (await ada.get(invited.json()["login_link"])).status_code == 303

        audited = [(entry["action"], entry["reason"]) for entry in await items(admin, "audit?text=ada&limit=20")]
        for action in ("user.add", "user.role", "user.disable", "user.enable", "user.invite"):
            assert (action, REASON) in audited
        assert [user["name"] for user in await items(admin, "users")] == ["ada", "admin"]


async def test_changing_the_own_role_is_a_conflict_and_an_unknown_user_not_found(web: RunningWeb) -> None:
    async with web.logged_in() as admin:
        assert (await send(admin, "PUT", "users/1/role", "a", role="viewer")).status_code == 409
        assert (await send(admin, "PUT", "users/9/role", "b", role="viewer")).status_code == 404
        assert (await send(admin, "POST", "users", "c", name="admin", role="viewer")).status_code == 409


async def test_an_admin_token_changes_neither_users_nor_grants(web: RunningWeb) -> None:
    async with web.logged_in() as admin, web.client() as program:
        ada = (await send(admin, "POST", "users", "a", name="ada", role="viewer")).json()["user"]["id"]
        token = await send(admin, "POST", "tokens", "b", name="ci", scope="admin", days=1)
        granted = await send(admin, "POST", "grants", "c", user="ada", role="operator", run="r")
        program.headers["authorization"] = f"Bearer {token.json()['secret']}"
        changes: list[tuple[str, str, dict[str, Any]]] = [
            ("POST", "users", {"name": "eve", "role": "admin"}),
            ("POST", f"users/{ada}/link", {}),
            ("PUT", f"users/{ada}/role", {"role": "admin"}),
            ("POST", f"users/{ada}/disable", {}),
            ("POST", f"users/{ada}/enable", {}),
            ("POST", "grants", {"user": "ada", "role": "admin", "run": "r"}),
            ("POST", f"grants/{granted.json()['id']}/revoke", {}),
        ]
        for index, (method, path, body) in enumerate(changes):
            refused = await send(program, method, path, f"k{index}", **body)
            assert (refused.status_code, refused.json()["code"]) == (403, "token.login_required"), path
        pages = ("users", f"users/{ada}/link", f"users/{ada}/role", f"users/{ada}/disable", f"users/{ada}/enable")
        for page in (*pages, "grants", "grants/1/revoke"):
            refused = await program.post(f"/settings/{page}")
            assert (refused.status_code, refused.json()["code"]) == (403, "token.login_required"), page
        assert [user["role"] for user in await items(program, "users")] == ["viewer", "admin"], "it may list them"
        assert [grant["role"] for grant in await items(program, "grants")] == ["operator"]


async def test_no_login_link_of_the_protected_admin_can_be_created(web: RunningWeb) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "admin", name="bob") as bob:
        number = next(user["id"] for user in await items(bob, "users") if user["name"] == "admin")
        refused = await send(bob, "POST", f"users/{number}/link", "a")
        assert (refused.status_code, refused.json()["code"]) == (409, "account.protected_user")
        settings = (await bob.get("/settings")).text
        assert f'action="/settings/users/{number}/link"' not in settings


async def test_concurrent_requests_with_one_key_create_one_token(web: RunningWeb) -> None:
    async with web.logged_in() as admin:
        responses = await asyncio.gather(
            *(send(admin, "POST", "tokens", "a", name="ci", scope="viewer", days=1) for _ in range(3))
        )
        assert {response.status_code for response in responses} == {201}
        assert sum(response.json()["secret"] is not None for response in responses) == 1
        assert len(await items(admin, "tokens")) == 1


async def test_a_token_is_shown_once_listed_without_its_secret_and_revoked(web: RunningWeb) -> None:
    async with web.logged_in() as admin, web.client() as program:
        token_response = await send(admin, "POST", "tokens", "a", name="ci", scope="admin", days=1)
        assert token_response.status_code == 201
        secret, number = token_response.json()["secret"], token_response.json()["token"]["id"]
        again = await send(admin, "POST", "tokens", "a", name="ci", scope="admin", days=1)
        assert (again.json()["secret"], again.json()["token"]["id"]) == (None, number)
        assert secret not in (await admin.get("/api/v1/tokens")).text
        assert [token["name"] for token in await items(admin, "tokens")] == ["ci"]

        program.headers["authorization"] = f"Bearer {secret}"
        assert (await program.get("/api/v1/session")).status_code == 200
        for path in ("tokens", "sessions"):
            assert (await program.get(f"/api/v1/{path}")).status_code == 403, "tokens cannot administer accounts"
        assert (await send(program, "POST", "tokens", "b", name="more", scope="viewer", days=1)).status_code == 403

        assert (await send(admin, "POST", f"tokens/{number}/revoke", "c")).status_code == 200
        assert (await program.get("/api/v1/session")).status_code == 401
        assert (await send(admin, "POST", f"tokens/{number}/revoke", "d")).status_code == 404
        assert (await send(admin, "POST", "tokens", "a", name="ci", scope="admin", days=1)).status_code == 409


async def test_users_end_their_own_sessions_and_admins_all(web: RunningWeb) -> None:
    async with web.logged_in() as admin, web.in_role(admin, "viewer", name="ada") as ada:
        own = await items(ada, "sessions")
        assert [(session["user"], session["is_here"]) for session in own] == [("ada", True)]
        of_admin = next(session for session in await items(admin, "sessions") if session["user"] == "admin")
        assert (await send(ada, "POST", f"sessions/{of_admin['id']}/end", "a")).status_code == 404
        assert (await send(admin, "POST", f"sessions/{own[0]['id']}/end", "b")).status_code == 200
        assert (await ada.get("/api/v1/session")).status_code == 401


@pytest.mark.long
async def test_a_write_of_a_session_needs_its_form_token(web: RunningWeb) -> None:
    async with web.logged_in() as admin:
        del admin.headers["x-form-token"]
        assert (await send(admin, "POST", "tokens", "a", name="ci", scope="viewer", days=1)).status_code == 403


async def test_the_audit_log_is_filtered_paged_verified_and_exported(web: RunningWeb) -> None:
    async with web.logged_in() as admin:
        for index in range(3):
            await send(admin, "POST", "users", f"k{index}", name=f"user{index}", role="viewer")
        first = (await admin.get("/api/v1/audit?action=user.add&limit=2")).json()
        rest = (await admin.get(f"/api/v1/audit?action=user.add&limit=2&before={first['older']}")).json()
        assert [entry["target"] for entry in first["items"] + rest["items"]] == ["user2", "user1", "user0"]
        assert rest["older"] is None
        assert (await admin.get("/api/v1/audit?since=1700000000")).status_code == 422
        verdict = (await admin.get("/api/v1/audit/verify")).json()
        assert verdict["is_whole"] is True
        assert verdict["checked"] >= 4
        for ending in ("csv", "ndjson"):
            query = "action=user.add&since=2020-01-01"
            by_page = await admin.get(f"/audit.{ending}?{query}")
            assert (await admin.get(f"/api/v1/audit.{ending}?{query}")).text == by_page.text != ""


async def test_a_change_of_the_retention_is_audited(web: RunningWeb) -> None:
    async with web.logged_in() as admin:
        assert (await admin.get("/api/v1/retention")).json() == {"days": 365}
        assert (await send(admin, "PUT", "retention", "a", days=90)).json() == {"days": 90}
        assert (await send(admin, "PUT", "retention", "b", days=1)).status_code == 422
        entry = (await items(admin, "audit?action=audit.retention"))[0]
        assert (entry["actor"], entry["reason"]) == ("admin", REASON)


@pytest.mark.long
async def test_the_api_has_the_weights_of_the_page(web: RunningWeb) -> None:
    async with web.logged_in() as admin:
        response = (await admin.get("/api/v1/weights")).json()
        assert response["insight"] in (await admin.get("/weights")).text
        assert response["versions"] == (await admin.get("/weights/versions.json")).json() != []
        links = (await admin.get("/api/v1/weights/links?limit=1&page=2")).json()
        assert links["items"] == (await admin.get("/weights/links.json")).json()[1:2] != []
        assert (await admin.get("/api/v1/weights/laggards")).json()["total"] >= 0


async def test_runs_are_compared_and_their_evaluations_read(web: RunningWeb, fake: FakeControlPlane) -> None:
    async with web.logged_in() as admin:
        await web.until_live(admin)
        number = (await items(admin, "runs"))[0]["id"]
        assert (await admin.get(f"/api/v1/comparison?run={number}&run={number}")).status_code == 422
        assert (await admin.get(f"/api/v1/comparison?run={number}&run=99")).status_code == 404
        rounds = (await admin.get(f"/api/v1/runs/{number}/evaluations?limit=1")).json()
        assert [round_["round"] for round_ in rounds["items"]] == [fake.synthetic_run.rounds(fake.sequence)[0].round]
        older = (await admin.get(f"/api/v1/runs/{number}/evaluations?before={rounds['older']}")).json()["items"]
        assert all(round_["round"] < rounds["older"] for round_ in older)
        assert (await admin.get("/api/v1/runs/99/evaluations")).status_code == 404
