"""Packs: what was asked for comes out, whatever a cut left of it; anything else is refused, whoever made it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridgehead import packs
from bridgehead.errors import TransferError, UsageError, VerificationError
from bridgehead.packs import Part

CONTENTS = st.lists(st.one_of(st.none(), st.binary(max_size=200)), min_size=1, max_size=8)


def _parts(contents: list[bytes | None]) -> list[Part]:
    whole = [b"gone" if data is None else data for data in contents]
    return [Part(hashlib.sha256(data).hexdigest(), 0, len(data)) for data in whole]


def _body(contents: list[bytes | None], *, deflate: bool) -> bytes:
    frames = b"".join(
        packs.frame_head(packs.GONE) if data is None else packs.frame_head(len(data)) + data for data in contents
    )
    return packs.DEFLATED + zlib.compress(frames, 1) if deflate else packs.PLAIN + frames


def _unpacked(body: bytes, parts: list[Part]) -> list[bytes | None]:
    return [None if data is None else bytes(data) for _, data in packs.unpack(body, parts)]


@given(CONTENTS, st.booleans())
def test_what_was_packed_comes_out(contents: list[bytes | None], deflate: bool) -> None:
    body, parts = _body(contents, deflate=deflate), _parts(contents)
    assert _unpacked(body, parts) == contents
    assert len(body) <= packs.most_bytes(parts)


@given(CONTENTS, st.booleans(), st.data())
def test_of_a_cut_pack_comes_a_beginning(contents: list[bytes | None], deflate: bool, data: st.DataObject) -> None:
    body = _body(contents, deflate=deflate)
    cut = data.draw(st.integers(0, len(body)))
    came = _unpacked(body[:cut], _parts(contents))
    assert came == contents[: len(came)]
    assert deflate or cut in (0, len(body)) or len(came) < len(contents)


@given(st.binary(max_size=300), CONTENTS)
@example(packs.DEFLATED + zlib.compress(bytes(10**7)), [b"bomb"])
def test_any_bytes_give_parts_of_the_right_length_or_are_refused(body: bytes, contents: list[bytes | None]) -> None:
    parts = _parts(contents)
    try:
        for part, data in packs.unpack(body, parts):
            assert data is None or len(data) == part.length
    except (VerificationError, TransferError):
        pass


@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize(
    "sent", [[b"a", b"bb", b"more"], [b"aa", b"bb"], [b"", b"bb"], [b"bb", b"a"]], ids=["extra", "longer", "0", "order"]
)
def test_a_part_too_many_or_of_another_length_is_refused(sent: list[bytes | None], deflate: bool) -> None:
    with pytest.raises(VerificationError):
        _unpacked(_body(sent, deflate=deflate), _parts([b"a", b"bb"]))


def test_a_bomb_is_refused_before_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = packs.DEFLATED + zlib.compress(bytes(20 * 2**20), 1)
    asked = _parts([b"x" * 100])
    grown = []
    real = zlib.decompressobj

    class Watched:
        def __init__(self) -> None:
            self._inner = real()
            self.unused_data = b""

        def decompress(self, data: memoryview, most: int) -> bytes:
            out = self._inner.decompress(data, most)
            grown.append(len(out))
            return out

    monkeypatch.setattr(packs.zlib, "decompressobj", Watched)
    with pytest.raises(VerificationError, match="more than was asked for"):
        _unpacked(bomb, asked)
    assert grown == [105]  # the part, its length, and one byte to see that there is more


@pytest.mark.parametrize("name", ["../out", "/etc/cron.d/x", "data/file", "run.sh"])
def test_an_archive_with_names_and_links_is_no_pack(name: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises((TransferError, VerificationError)):
        _unpacked(buffer.getvalue(), _parts([b"x" * 512]))


def test_a_request_is_read_back() -> None:
    parts = _parts([b"one", b"two"])
    document = json.loads(json.dumps(packs.make_request(parts, deflate=True)))
    assert packs.read_request(document) == (parts, True)


SHA = "0" * 64


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"parts": []},
        {"parts": [[SHA, 0, 1]] * (packs.PARTS_MAX + 1)},
        {"parts": [[SHA, 0, packs.CONTENT_MAX_BYTES], [SHA, 0, 1]]},
        {"parts": [["../" + SHA[3:], 0, 1]]},
        {"parts": [[SHA.upper().replace("0", "A"), 0, 1]]},
        {"parts": [[SHA, -1, 1]]},
        {"parts": [[SHA, 0, -1]]},
        {"parts": [[SHA, True, 1]]},
        {"parts": [[SHA, 0.0, 1]]},
        {"parts": [[SHA, 2**60, 1]]},
        {"parts": [[SHA, 0]]},
        {"parts": {SHA: 1}},
    ],
)
def test_a_request_out_of_bounds_is_refused(document: object) -> None:
    with pytest.raises(UsageError):
        packs.read_request(document)


@given(st.lists(st.integers(0, packs.CONTENT_MAX_BYTES), max_size=50))
def test_groups_keep_the_order_and_the_bounds(lengths: list[int]) -> None:
    parts = [Part(SHA, index, length) for index, length in enumerate(lengths)]
    grouped = list(packs.groups(parts))
    assert [part for group in grouped for part in group] == parts
    for group in grouped:
        assert packs.read_request(packs.make_request(group, deflate=False))[0] == group
