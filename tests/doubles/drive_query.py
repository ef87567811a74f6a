"""The two small languages of the Drive API: the search term `q` and the selection `fields`."""

from __future__ import annotations

import re
from typing import Any

from doubles.google_cloud import Entry

FOLDER_TYPE = "application/vnd.google-apps.folder"
FILE_TYPE = "application/octet-stream"
_TERMS = (
    (r"'(?P<v>(?:[^'\\]|\\.)*)'\s+in\s+parents", lambda entry, v: entry.parent == v),
    (r"name\s*=\s*'(?P<v>(?:[^'\\]|\\.)*)'", lambda entry, v: entry.name == v),
    (r"name\s*!=\s*'(?P<v>(?:[^'\\]|\\.)*)'", lambda entry, v: entry.name != v),
    (r"mimeType\s*=\s*'(?P<v>(?:[^'\\]|\\.)*)'", lambda entry, v: mime_type(entry) == v),
    (r"mimeType\s*!=\s*'(?P<v>(?:[^'\\]|\\.)*)'", lambda entry, v: mime_type(entry) != v),
    (r"trashed\s*=\s*(?P<v>true|false)", lambda entry, v: entry.trashed == (v == "true")),
    (
        r"appProperties\s+has\s*\{\s*key\s*=\s*'(?P<k>[^']*)'\s+and\s+value\s*=\s*'(?P<v>(?:[^'\\]|\\.)*)'\s*\}",
        None,
    ),
)
_AND = re.compile(r"\s+and\s+")


class BadQuery(Exception):
    """What the API answers with 400 Invalid Value."""


def mime_type(entry: Entry) -> str:
    return FOLDER_TYPE if entry.folder else FILE_TYPE


def matches(query: str, entries: list[Entry]) -> list[Entry]:
    """The entries that fulfil every term of `q`. Only the terms above and `and` are known."""
    at = 0
    while at < len(query):
        for pattern, check in _TERMS:
            found = re.compile(pattern).match(query, at)
            if found is None:
                continue
            value = re.sub(r"\\(.)", r"\1", found["v"])
            if check is None:
                entries = [entry for entry in entries if entry.properties.get(found["k"]) == value]
            else:
                entries = [entry for entry in entries if check(entry, value)]
            at = found.end()
            break
        else:
            raise BadQuery(query)
        if at < len(query):
            joined = _AND.match(query, at)
            if joined is None:
                raise BadQuery(query)
            at = joined.end()
    return entries


def select(resource: dict[str, Any], fields: str) -> dict[str, Any]:
    """Only what was asked for: `id,name`, `files(id,size),nextPageToken`, `storageQuota/limit`, `*`."""
    if fields == "*":
        return resource
    chosen: dict[str, Any] = {}
    for field in _split(fields):
        name, _, inner = field.partition("(") if "(" in field else field.partition("/")
        if name not in resource:
            continue
        value, inner = resource[name], inner.removesuffix(")")
        if not inner:
            chosen[name] = value
        elif isinstance(value, list):
            chosen[name] = [select(item, inner) for item in value]
        else:
            chosen.setdefault(name, {}).update(select(value, inner))
    return chosen


def _split(fields: str) -> list[str]:
    parts, depth = [""], 0
    for letter in fields:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
