"""The public address, watched: published once it is proven, kept an eye on, restarted when only that helps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from bridge.front_door import DoorState, FrontDoor, Standing, Times
from bridge.probe import Probe, ProbeFailed
from bridge_client import LiveBridge
from bridgehead.errors import PairingError

TIMES = Times(tick_s=0.01, look_s=0.05, worried_s=0.02, down_after_s=0.3, patience_max_s=0.6, settle_s=5.0)
NOWHERE = "http://127.0.0.1:1"  # no port that anybody listens at


@dataclass
class Way:
    """A tunnel whose state the tests set."""

    name: str = "way"
    well: bool = True
    why: str = ""
    restarts: list[str] = field(default_factory=list)

    def start(self, local_port: int) -> None: ...

    def wait_url(self, timeout_s: float) -> str:
        return ""

    def healthy(self) -> bool:
        return self.well

    def stop(self) -> None: ...

    def log_tail(self) -> list[str]:
        return []

    def trouble(self) -> str:
        return self.why

    def restart(self) -> None:
        self.restarts.append("now")


@dataclass
class Scene:
    live: LiveBridge
    way: Way = field(default_factory=Way)
    published: list[str] = field(default_factory=list)
    standings: list[Standing] = field(default_factory=list)
    heard: bool = False
    fail: list[Exception] = field(default_factory=list)  # what the next publishings end with

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.live.bridge.port}"

    @property
    def states(self) -> list[DoorState]:
        """Without repetitions."""
        seen: list[DoorState] = []
        for standing in self.standings:
            if not seen or seen[-1] is not standing.state:
                seen.append(standing.state)
        return seen

    def door(self, times: Times = TIMES) -> FrontDoor:
        async def publish(url: str) -> None:
            if self.fail:
                raise self.fail.pop()
            self.published.append(url)

        async def heard() -> bool:
            return self.heard

        probe = Probe(self.live.bridge.keys.current, self.live.bridge.announce_host)
        return FrontDoor(self.way, probe, publish=publish, told=self.standings.append, heard=heard, times=times)


@pytest.fixture
def scene(live: LiveBridge) -> Scene:
    return Scene(live)


def run(scene: Scene, script: Callable[[FrontDoor], Awaitable[None]], times: Times = TIMES) -> None:
    """Open the door, and let `script` happen while it is kept."""

    async def all_of_it() -> None:
        door = scene.door(times)
        await door.open(scene.url)
        keeping = asyncio.create_task(door.keep())
        try:
            await script(door)
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping

    asyncio.run(all_of_it())


async def until(predicate: Callable[[], object], what: str = "the condition") -> None:
    for _ in range(2000):
        if predicate():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited for {what}")


def test_the_first_address_is_published_once_it_is_proven(scene: Scene) -> None:
    asyncio.run(scene.door().open(scene.url))
    assert scene.published == [scene.url] and scene.states == [DoorState.CONNECTED]


def test_an_address_that_is_not_proven_is_told_to_nobody(scene: Scene) -> None:
    with pytest.raises(ProbeFailed, match="can't be reached"):
        asyncio.run(scene.door(Times(settle_s=0.5)).open(NOWHERE))
    assert scene.published == [] and scene.states == [DoorState.PROBING]
    assert "can't be reached" in scene.standings[-1].note


def test_a_new_address_is_published_when_it_is_proven_and_not_before(scene: Scene) -> None:
    async def script(door: FrontDoor) -> None:
        door.moved(NOWHERE)
        await until(lambda: DoorState.PROBING in scene.states)
        assert scene.published == [scene.url]
        door.moved(scene.url.replace("127.0.0.1", "localhost"))
        await until(lambda: len(scene.published) == 2)
        await until(lambda: scene.states[-1] is DoorState.CONNECTED)

    run(scene, script)
    assert scene.published[1].startswith("http://localhost:")


def test_an_address_that_comes_back_is_not_published_twice(scene: Scene) -> None:
    async def script(door: FrontDoor) -> None:
        door.moved(NOWHERE)
        await until(lambda: scene.states[-1] is DoorState.PROBING)
        door.moved(scene.url)
        await until(lambda: scene.states[-1] is DoorState.CONNECTED)

    run(scene, script)
    assert scene.published == [scene.url]


def test_a_tunnel_that_says_all_is_well_while_nothing_gets_through_is_restarted_with_growing_patience(
    scene: Scene,
) -> None:
    async def script(door: FrontDoor) -> None:
        door.moved(NOWHERE)
        await until(lambda: len(scene.way.restarts) == 2)
        assert scene.states[-1] is DoorState.DOWN or DoorState.DOWN in scene.states

    run(scene, script)
    assert scene.states[:3] == [DoorState.CONNECTED, DoorState.PROBING, DoorState.DOWN]


def test_a_tunnel_that_knows_to_be_down_is_left_to_itself_and_its_reason_is_told(scene: Scene) -> None:
    scene.way.well, scene.way.why = False, "no network"

    async def script(door: FrontDoor) -> None:
        door.moved(NOWHERE)
        await until(lambda: sum(standing.state is DoorState.DOWN for standing in scene.standings) > 60)

    run(scene, script)
    assert scene.way.restarts == [] and scene.standings[-1].note == "no network"


def test_while_a_vm_gets_through_nothing_is_restarted(scene: Scene) -> None:
    scene.heard = True

    async def script(door: FrontDoor) -> None:
        door.moved(NOWHERE)
        await until(lambda: sum(standing.state is DoorState.PROBING for standing in scene.standings) > 60)

    run(scene, script)
    assert scene.way.restarts == [] and DoorState.DOWN not in scene.states


def test_since_when_it_is_so_stays_the_same_while_it_is_so(scene: Scene) -> None:
    async def script(door: FrontDoor) -> None:
        await until(lambda: len(scene.standings) > 10)

    run(scene, script)
    assert {standing.since for standing in scene.standings} == {scene.standings[-1].since}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PairingError("keys.json is damaged")])
def test_an_address_that_cant_be_written_down_is_tried_again(scene: Scene, error: Exception) -> None:
    async def script(door: FrontDoor) -> None:
        scene.fail.append(error)
        door.moved(scene.url.replace("127.0.0.1", "localhost"))
        await until(lambda: len(scene.published) == 2)

    run(scene, script)
    assert scene.fail == [] and "can't be written down" in "".join(standing.note for standing in scene.standings)


def test_after_a_sleep_it_looks_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = Probe.ask

    async def ask(self: Probe, url: str) -> None:
        asked.append(url)
        await real(self, url)

    monkeypatch.setattr(Probe, "ask", ask)
    naps = iter([False, True])
    monkeypatch.setattr("bridge.tunnels.sleep.SleepWatch.woke", lambda self, planned_s: next(naps, False))

    async def script(door: FrontDoor) -> None:
        await until(lambda: len(asked) == 2)

    run(scene, script, Times(tick_s=0.01, look_s=3600.0))
