"""Reads the XML that an object store answers with: no entities, and bounds on its size and depth."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from xml.parsers import expat

from bridgehead.errors import StoreError

MAX_BYTES = 8 << 20  # a page of 1000 names of 1 KiB is far below
_MAX_DEPTH = 16
_MAX_ELEMENTS = 100_000
_LAST = True


def parse(data: bytes) -> ElementTree.Element:
    """The root, tags without their namespace. Raises StoreError for what is no plain XML document."""
    if len(data) > MAX_BYTES:
        raise StoreError(f"the object store's answer has over {MAX_BYTES} bytes")
    builder = _Builder()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = builder.refuse_doctype  # without one there are no entities to expand
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.tree.data
    try:
        parser.Parse(data.lstrip(), _LAST)  # blanks come first while a server takes its time
        return builder.tree.close()
    except (expat.ExpatError, ValueError, AssertionError):
        raise StoreError("the object store's answer is no XML that can be read") from None


def text(element: ElementTree.Element, tag: str) -> str:
    """The text of the first child called `tag`; empty when there is none."""
    return (element.findtext(tag) or "").strip()


class _Builder:
    def __init__(self) -> None:
        self.tree = ElementTree.TreeBuilder()
        self._depth = 0
        self._elements = 0

    def refuse_doctype(self, *_: object) -> None:
        raise ValueError("a document type")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._elements += 1
        if self._depth > _MAX_DEPTH or self._elements > _MAX_ELEMENTS:
            raise ValueError("too deep or too much")
        self.tree.start(tag.rpartition(" ")[2], attributes)

    def end(self, tag: str) -> None:
        self._depth -= 1
        self.tree.end(tag.rpartition(" ")[2])
