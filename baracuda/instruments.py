"""What the library tells others of its work: a logger, and ranges for profilers.

``logging.getLogger("baracuda")`` says at DEBUG what was planned and why, and which kernels were
compiled; ``BARACUDA_LOG=debug`` prints that. Every run of a plan is an NVTX range named by its SKU
where a profiler that injects itself is there (Nsight Systems), or with ``BARACUDA_NVTX=1``;
``BARACUDA_NVTX=0`` turns ranges off.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

logger = logging.getLogger("baracuda")
logger.addHandler(logging.NullHandler())


def print_log(level: str) -> None:
    """Print what is logged from `level` on to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    known = logging.getLevelNamesMapping()
    if level.upper() in known:
        logger.setLevel(known[level.upper()])
    else:
        logger.warning("BARACUDA_LOG: expected %s, got %r", ", ".join(known).lower(), level)


@cache
def domain() -> Any:
    """The domain of NVTX in which ranges are, None where nobody looks."""
    wanted = os.environ.get("BARACUDA_NVTX", "")
    if wanted == "0" or not (wanted or "NVTX_INJECTION64_PATH" in os.environ):
        return None
    try:
        return import_module("nvtx").get_domain("baracuda")
    except ModuleNotFoundError:
        logger.warning("NVTX ranges need nvtx: pip install 'baracuda[profile]'")
        return None


def ranged(run: Callable[..., Any], name: Callable[[], str]) -> Callable[..., Any]:
    """`run` within a range of that name, where somebody looks."""
    here = domain()
    if here is None:
        return run
    attributes = here.get_event_attributes(message=name())

    def run_in_range(*arguments: Any) -> Any:
        here.push_range(attributes)
        try:
            return run(*arguments)
        finally:
            here.pop_range()

    return run_in_range


if os.environ.get("BARACUDA_LOG"):
    print_log(os.environ["BARACUDA_LOG"])
