"""The ledger for who only looks: sees every commit of the bridge, and can change nothing."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from ledger_support import PROJECT

from bridge.ledger import Ledger
from bridge.ledger_reader import LedgerReader
from bridgehead import names
from bridgehead.errors import VerificationError


def test_a_reader_sees_what_is_written_beside_it_and_that_something_was(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / names.LEDGER_FILE)
    reader = LedgerReader(tmp_path / names.LEDGER_FILE)
    before = reader.version()
    assert reader.commands() == [] and reader.version() == before
    ledger.take([(1, "run:pretrain")], PROJECT)
    assert reader.version() != before
    assert reader.commands() == ledger.commands() and reader.find_run("pretrain").seq == 1
    reader.close()
    ledger.close()


def test_a_reader_changes_nothing(tmp_path: Path) -> None:
    Ledger(tmp_path / names.LEDGER_FILE).close()
    reader = LedgerReader(tmp_path / names.LEDGER_FILE)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.take([(1, "run:pretrain")], PROJECT)
    reader.close()


def test_a_reader_opens_what_a_bridge_left_that_is_gone(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / names.LEDGER_FILE)
    ledger.take([(1, "run:pretrain")], PROJECT)
    ledger.close()
    reader = LedgerReader(tmp_path / names.LEDGER_FILE)
    assert len(reader.commands()) == 1
    reader.close()


@pytest.mark.parametrize("content", [None, b"", b"this is no database" * 100])
def test_what_is_no_ledger_is_refused_and_not_made(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / names.LEDGER_FILE
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(VerificationError, match=names.LEDGER_FILE):
        LedgerReader(path)
    assert path.exists() == (content is not None)
