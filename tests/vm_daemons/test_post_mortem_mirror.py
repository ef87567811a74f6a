"""A post-mortem on its way to the laptop."""

from __future__ import annotations

import time
from pathlib import Path

from bridge_client import STAGE, live_bridge, project
from bridgehead import files, names
from bridgehead.records import RunRecord
from vm_daemons import post_mortem
from vm_daemons.client import BridgeClient
from vm_daemons.run_mirror import RunMirror
from vm_support import end_run, make_run, paired_home


def test_it_is_on_the_laptop_before_exit_json(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    with live_bridge(tmp_path / "project") as live:
        home = paired_home(tmp_path / "vm", live)
        client = BridgeClient(home)
        run_id = live.bridge.ledger.take([(1, f"run:{STAGE}")], project())[0].run_id
        client.poll(0, 0)
        run_dir, arrived = make_run(home, run_id), live.arrivals / run_id
        end_run(run_dir)
        post_mortem.announce(run_dir, oom_killed=False, disk_full=False)
        mirror = RunMirror(client, run_dir, RunRecord.from_json(files.read_json(run_dir / names.RUN_RECORD)))
        mirror.compose(time.time())
        while mirror.ship():
            pass
        assert not mirror.ship_outputs() and not mirror.shipped and not (arrived / names.EXIT).exists()
        post_mortem.write(run_dir)
        assert mirror.ship_outputs() and mirror.shipped
        for name in (names.EXIT, *names.POSTMORTEM_FILES):
            assert (arrived / name).read_bytes() == (run_dir / name).read_bytes()
