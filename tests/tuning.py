"""Schedules with other figures in their tuning records."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch


def retuned(schedule: Any, **fields: Any) -> Any:
    """A context in which the tuning records of a schedule have other values in some fields."""
    others = {arch: record._replace(**fields) for arch, record in schedule.TUNINGS.items()}
    return patch.dict(schedule.TUNINGS, others)
