"""A bridge for each test, and a client that signs; a file that shares its bridge among its tests makes its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge_client import Client, LiveBridge, live_bridge


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveBridge]:
    with live_bridge(tmp_path) as bridge:
        yield bridge


@pytest.fixture
def client(live: LiveBridge) -> Client:
    return live.client()
