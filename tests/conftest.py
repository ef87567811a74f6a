"""What holds for every test: a property may take its time, since a busy machine is no counter-example."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")
