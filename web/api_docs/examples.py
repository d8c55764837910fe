"""Examples for the API's parameters and responses, generated from the schemas with values by field name.

A new field needs a value here only if its type and the suffix of its name (`_at`, `_s`, `_bytes`) are not enough;
`tests/web/api_docs/test_api_examples.py` fails when an example does not match its schema.
"""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

AT = 1763892000.0
"""Time in all examples. Unix seconds."""

_HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

VALUES: dict[str, tuple[Any, ...]] = {
    "action": ("pool.apply",),
    "actor": ("ada",),
    "address": ("/nodes?state=lost",),
    "after": (120, '{"nodes": 6}'),
    "at": (AT,),
    "attempt": (1,),
    "author": ("model",),
    "back_pressure": ("none: groups are issued",),
    "before": ("01KAN8Q0000000000000000000", 120, '{"nodes": 4}'),
    "begin": (0.0,),
    "boundary": ("engine",),
    "bound": (4,),
    "browser": ("Mozilla/5.0 (X11; Linux x86_64)",),
    "by": ("ada",),
    "came_from": ("127.0.0.1",),
    "chain": ("",),
    "changed_share": (0.012,),
    "cluster": ("eu-1",),
    "code": ("bounds",),
    "columns": (["id", "run", "policy", "step", "reward"],),
    "completion_text": ("The answer is 42.",),
    "counters": ({"prompt_tokens": 120000.0},),
    "created_at": (AT,),
    "dataflow": ("127.0.0.1:4700",),
    "days": (365,),
    "decided_by": ("ada",),
    "dropped": ({"informative": 12},),
    "end": (0.1, 4096),
    "engine": ("vllm",),
    "entry_hash": (_HASH,),
    "error": (0.02,),
    "facts": (
        {
            "name": "eu-1",
            "pool": "eu",
            "region": "eu-west-1",
            "engine": "vllm",
            "capacity": 64,
            "price_per_hour": 2.1,
        },
    ),
    "failure": (None,),
    "outcome": ("trained",),
    "filters": ([{"kind": "informative"}],),
    "insight": ("Every node serves the newest version",),
    "flow": ("train",),
    "folder": ("runs/smoke",),
    "from": ("1763888400",),
    "gauges": ({"kv_cache_share": 0.4},),
    "group": ("train:42",),
    "handle": ("4711",),
    "hash": (_HASH,),
    "id": (1, "eu"),
    "input_hash": (_HASH,),
    "inputs": ({"wait_share": 0.12},),
    "key": ("trainer.learning_rate",),
    "kind": ("replay",),
    "lag": ({"solver": 0},),
    "last_hash": (_HASH,),
    "login_link": ("http://127.0.0.1:8080/login?token=...",),
    "logs": (["launch", "dataflow"],),
    "message": ("node n0 is draining",),
    "metrics": ({"turns": 2.0},),
    "mode_by": ("ada",),
    "model": ("claude",),
    "name": ("eu",),
    "newest": ("v12",),
    "node": ("node-1.1",),
    "node_name": ("eu-1",),
    "nodes": (6, {"ready": 6}),
    "numbers": ({"demand": 5.2},),
    "older": (100, "f12r3"),
    "opened_by": ("password",),
    "options": ({},),
    "order": ("down",),
    "plan": ("01KAN8Q0000000000000000001",),
    "planned": ([],),
    "planned_by": ("ada",),
    "policy": ("solver",),
    "pool": ("eu",),
    "pools": (1, "eu"),
    "previous": ("",),
    "previous_hash": (_HASH,),
    "problem": ("",),
    "program": ("dataflow",),
    "prompt_text": ("What is six times seven?",),
    "proposed_by": ("maintainer",),
    "provider": ("here",),
    "reason": ("the trainer waits since demand doubled",),
    "recipe": ("smoke",),
    "reference_text": ("42",),
    "region": ("eu-west-1",),
    "requested_by": ("ada",),
    "report": ({"sequence": 120, "run": "reverse-0001"},),
    "result": ("done",),
    "role": ("operator",),
    "rows": ([[1, "reverse-0001", "solver", 10.0, 0.61]],),
    "run_id": (1,),
    "run": ("reverse-0001", [1, 2]),
    "sampler": ({"kind": "replay", "ratio": 0.3},),
    "scope": ("operator",),
    "slot": ("filters",),
    "secret": ("astraflow_pat_...",),
    "selector": ({"kind": "uniform"},),
    "sentence": ("eu: 4 to 6 nodes",),
    "serves": ("v11",),
    "since": ("2026-11-21",),
    "source": ("10.0.0.5:4800",),
    "specs": ([{"kind": "informative"}],),
    "staleness": (1, {"0": 8, "1": 2}),
    "state": ("running",),
    "status": ("ok",),
    "target": (6, "eu"),
    "task": ("train:42/0",),
    "text": ("lost",),
    "text_ends": ([24, 41],),
    "to": ("1763892000",),
    "remedy": ("",),
    "token": ("nightly",),
    "type": ("g5.xlarge",),
    "until": ("2026-11-22",),
    "user": ("ada",),
    "value": (0.61,),
    "values": (["0.001", "0.0001"],),
    "version": (12,),
    "versions": (12, {"solver": 12}),
    "via": ("session",),
    "wake": ("01KAN8Q0000000000000000002",),
    "why": ("in a batch",),
}
"""Example values by field or parameter name; the first value whose type matches is used."""

PATTERNED = {r"^f[0-9]{1,18}r[0-9]{1,18}$": "f12r3"}
"""Example strings by regular expression."""

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def add_examples(document: dict[str, Any]) -> None:
    """Adds an example to every successful response and every parameter that has none."""
    schemas = document["components"]["schemas"]
    for operation in (operation for methods in document["paths"].values() for operation in methods.values()):
        for parameter in operation.get("parameters", []):
            if not {"example", "examples"} & {*parameter, *parameter["schema"]}:
                parameter["example"] = example_of(parameter["schema"], schemas, parameter["name"])
        for status, response in operation["responses"].items():
            for media_type, content in response.get("content", {}).items() if status.startswith("2") else ():
                if not {"example", "examples"} & {*content}:
                    content["example"] = _FILES.get(media_type) or example_of(content["schema"], schemas, "")


_FILES = {
    "text/csv": "at,reward\r\n1763892000.0,0.61\r\n",
    "application/x-ndjson": '{"sequence": 1, "action": "session.open"}\n',
}


def example_of(schema: Schema, schemas: Schema, name: str) -> Any:
    """Returns a value that matches the schema, for a field of this name. schemas: definitions for `$ref`."""
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].rpartition("/")[2]], schemas, name)
    if schema.get("examples"):
        return schema["examples"][0]
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return _chosen(schema["enum"], name)
    if "anyOf" in schema:
        if None in VALUES.get(name, ()):
            return None
        return example_of(schema["anyOf"][0], schemas, name)
    if schema.get("properties"):
        return {field: example_of(subschema, schemas, field) for field, subschema in schema["properties"].items()}
    if schema.get("pattern") in PATTERNED:
        return PATTERNED[schema["pattern"]]
    kind = schema.get("type", "object")
    example = next((value for value in VALUES.get(name, ()) if _matches_type(value, kind)), None)
    if example is not None:
        return example
    if kind == "array":
        return [example_of(schema["items"], schemas, name)] if schema.get("items") else []
    if kind == "object":
        return {}
    return _plain(kind, name, schema)


def _chosen(values: list[Any], name: str) -> Any:
    """Returns the enum value that `VALUES` has for the name, else the first that is not empty."""
    fitting = [value for value in VALUES.get(name, ()) if value in values]
    return next(iter([*fitting, *(value for value in values if value != "")]))


def _matches_type(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and isinstance(value, bool) == (kind == "boolean")


def _plain(kind: str, name: str, schema: Schema) -> Any:
    """Returns a value by type and by the unit in the suffix of the name."""
    if kind in ("integer", "number"):
        number: float = schema.get("default") or next(
            (value for ending, value in _ENDINGS.items() if name.endswith(ending)), 3
        )
        return int(number) if kind == "integer" else float(number)
    return {"boolean": name in ("is_ok", "is_whole", "is_here", "is_live"), "null": None}.get(kind, "")


_ENDINGS = {"_at": AT, "_until": AT, "per_s": 1.5, "_s": 2.5, "_bytes": 1_048_576, "share": 0.1, "_hour": 4.2}
