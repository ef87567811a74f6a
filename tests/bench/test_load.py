"""The load of bench/load.py, a few VMs for a few seconds: nobody hears an error, and no byte of a log is lost."""

from __future__ import annotations

import pytest

from bench import load
from bench.load import Load


@pytest.mark.slow
def test_vms_that_do_everything_at_once_hear_no_error_and_lose_no_byte() -> None:
    seen = load.run("bridge", Load(minutes=0.1, vms=6, log_mib_s=0.5, slow=2))
    assert not seen.errors
    assert len(seen.logs) == 6 and not seen.lost_logs
    assert min(log["size"] for log in seen.logs.values()) > 0
    assert len(seen.answers_s) == seen.lines > 0


def test_memory_that_grows_has_a_slope_and_a_warm_up_has_not() -> None:
    grows = [(second / 60, 100.0 + second / 60 * 3) for second in range(120)]
    assert load.slope_mib_per_minute(grows) == pytest.approx(3.0)
    warm = [(second / 60, min(100.0, second * 2.0)) for second in range(120)]
    assert load.slope_mib_per_minute(warm) == pytest.approx(0.0, abs=1e-6)
