"""/docs: the description of the API as a plain page without scripts or external files; it works offline."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from html import escape
from typing import Any

from ease.app.server.exchange import CSP

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
body { color: #222; background: #fff }
h2 { font: 600 1.05rem ui-monospace, monospace; border-top: 1px solid #ccc; padding-top: 1rem; margin-top: 2rem }
table { border-collapse: collapse; margin: .3rem 0 1rem }
td, th { text-align: left; vertical-align: top; padding: .15rem 1rem .15rem 0 }
th { font-weight: 600 }
code { font-family: ui-monospace, monospace }
.about { color: #555 }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818 }
  h2 { border-color: #444 }
  .about, a { color: #aaa }
}
"""
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"{CSP}; style-src 'self' 'sha256-{_HASH}'"


def page(schema: dict[str, Any]) -> str:
    """The page for an OpenAPI schema."""
    info = schema["info"]
    body = "".join(_routes(schema))
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{escape(info['title'])}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])}</h1><p>{escape(info.get('description', ''))}</p>"
        f"<p class='about'>As a schema: <a href='openapi.json'>openapi.json</a></p>{body}</body></html>"
    )


def _routes(schema: dict[str, Any]) -> Iterator[str]:
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            yield f"<h2>{method.upper()} {escape(path)}</h2>"
            yield f"<p>{escape(' '.join((route.get('description') or route.get('summary', '')).split()))}</p>"
            yield from _table("Parameters", [_parameter(each) for each in route.get("parameters", [])])
            for kind, content in route.get("requestBody", {}).get("content", {}).items():
                yield from _table(f"Body ({kind})", _fields(schema, content.get("schema", {})))
            for status, answer in route.get("responses", {}).items():
                if status[0] == "2":
                    yield from _answer(schema, status, answer)


def _answer(schema: dict[str, Any], status: str, answer: dict[str, Any]) -> Iterator[str]:
    for kind, content in answer.get("content", {}).items():
        rows = _fields(schema, content.get("schema", {}))
        yield from (
            _table(f"Answer {status}", rows) if rows else [f"<p><b>Answer {status}</b> {escape(kind)}</p>"]
        )


def _table(title: str, rows: list[tuple[str, str, str]]) -> Iterator[str]:
    if not rows:
        return
    yield f"<table><tr><th colspan='3'>{escape(title)}</th></tr>"
    for name, kind, about in rows:
        yield f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td>"
        yield f"<td class='about'>{escape(about)}</td></tr>"
    yield "</table>"


def _parameter(each: dict[str, Any]) -> tuple[str, str, str]:
    about = each.get("description") or each.get("schema", {}).get("description", "")
    return each["name"], f"{_kind(each.get('schema', {}))} in {each['in']}", about


def _fields(schema: dict[str, Any], part: dict[str, Any]) -> list[tuple[str, str, str]]:
    part = _resolved(schema, part)
    return [
        (name, _kind(value), " ".join(str(value.get("description", "")).split()))
        for name, value in part.get("properties", {}).items()
    ]


def _resolved(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    name = part.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = schema.get("components", {}).get("schemas", {}).get(name, part)
    return found


def _kind(part: dict[str, Any]) -> str:
    if "anyOf" in part:
        return " or ".join(_kind(each) for each in part["anyOf"])
    if "$ref" in part:
        return str(part["$ref"].rpartition("/")[2])
    if "enum" in part:
        return " | ".join(map(str, part["enum"]))
    if part.get("type") == "array":
        return f"list of {_kind(part.get('items', {}))}"
    return str(part.get("const") or part.get("format") or part.get("type", "any"))
