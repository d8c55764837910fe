"""Client of a search service."""

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from astraflow.contract.errors import InvalidInput, Unavailable
from astraflow.runtime.http.json_service import JsonClient, JsonRefused
from astraflow.search.base import Document, Hit

_REFUSED = 422
"""HTTP status of invalid requests."""


class SearchClient:
    """Searches by `/retrieve` and `/access` of a service, which may be another implementation of these endpoints."""

    def __init__(self, client: JsonClient, *, limit_s: float = 20.0) -> None:
        self._client = client
        self._limit_s = limit_s

    async def retrieve(self, queries: Sequence[str], top: int) -> list[list[Hit]]:
        """See `Search.retrieve`."""
        body = {"queries": list(queries), "topk": top, "return_scores": True}
        rows = await self._post("/retrieve", body, len(queries))
        return [[_hit(row) for row in hits[:top]] for hits in _checked(_HITS, rows)]

    async def access(self, urls: Sequence[str]) -> list[Document | None]:
        """See `Search.access`."""
        rows = await self._post("/access", {"urls": list(urls)}, len(urls))
        pages = _checked(_PAGES, rows)
        return [
            Document(id=page.get("id") or url, title=page.get("title") or "", url=url, text=page["page"] or "")
            if page and page.get("page")
            else None
            for url, page in zip(urls, pages, strict=True)
        ]

    async def _post(self, path: str, body: dict[str, Any], count: int) -> list[Any]:
        try:
            answer = await self._client.post(path, body, limit_s=self._limit_s)
        except JsonRefused as problem:
            if problem.status == _REFUSED:
                raise InvalidInput(str(problem), code=problem.code) from None
            raise Unavailable(str(problem), code=problem.code) from None
        rows = answer.get("result")
        if not isinstance(rows, list) or len(rows) != count:
            raise _invalid("`result` has not one entry for each request")
        return rows


_HITS = TypeAdapter(list[list[dict[str, Any]]])
_PAGES = TypeAdapter(list[dict[str, str | None] | None])


def _checked(adapter: TypeAdapter[Any], rows: list[Any]) -> Any:
    try:
        return adapter.validate_python(rows)
    except ValidationError as problem:
        raise _invalid(f"{problem.error_count()} of its values have another type") from None


def _hit(row: dict[str, Any]) -> Hit:
    document = row.get("document")
    if not isinstance(document, dict) or not isinstance(document.get("contents"), str):
        raise _invalid("a document has no `contents`")
    values = {name: str(document.get(name) or "") for name in ("id", "title", "url")}
    score = row.get("score")
    number = float(score) if isinstance(score, int | float) else 0.0
    return Hit(document=Document(**values, text=document["contents"]), score=number)


def _invalid(cause: str) -> Unavailable:
    return Unavailable(
        f"cannot use the answer of the search service: {cause}; check that the address is that of a search service",
        code="search.invalid_answer",
    )
