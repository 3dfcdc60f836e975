"""What every test gets: Hypothesis without deadlines (two workers share a core) and without an example database."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("mqd", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mqd")
