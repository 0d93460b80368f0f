"""Bespoke kernels on NVIDIA devices. Loaded when first asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from baracuda.backends.cuda.geometry import MOST_DIMS, merged, walkable
from baracuda.declaration.backend import Prepared, Refusal
from baracuda.declaration.sku import PrecisionGuarantee
from baracuda.declaration.spec import OpSpec, Problem
from baracuda.libraries import TRACED, Array

if TYPE_CHECKING:
    from baracuda.backends.cuda.lists import ListRunner
    from baracuda.backends.cuda.runner import CudaRunner

_INSTALL = "pip install 'baracuda[cuda]'"
# Packages that have to be there, and the oldest version of each.
_NEEDS = (("cuda-core", (1, 2)), ("cuda-bindings", (13, 0)), ("nvidia-cuda-nvrtc", (13, 0)))
# Not needed for kernels that are in an installed wheel.
_COMPILER = "nvidia-cuda-nvrtc"


class CudaBackend:
    """The op's functor on its schedule, compiled for the device."""

    name = "cuda"
    reads = "dqQ"

    def claims(self, spec: OpSpec, library: str) -> Sequence[str]:
        return spec.dtypes if spec.kernel is not None else ()

    def check_errors(self) -> None:
        """Wait for the devices; raise the index that a kernel met out of range."""
        if unavailable() is None:
            _module("index_errors").check()

    def mixes(self, spec: OpSpec) -> bool:
        """Whether kernels take the values that may be wider than others so."""
        schedule = spec.kernel and spec.kernel.schedule
        # Planes are of one type.
        only = schedule == "planes" and spec.wide == ("parameter",)
        if schedule in ("cross_entropy", "kl_div", "topk_kl_div"):
            return "residual" not in spec.wide
        if spec.wide == ("cotangent",):
            return schedule in ("rows", "elementwise", "log_prob", "nll_loss")
        return only or schedule in (
            "rows", "elementwise", "rope", "heads", "join_rows", "spread_rows"
        )  # fmt: skip

    def refuses(self, problem: Problem) -> str | None:
        if problem.spec.kernel is None:
            return f"has no kernel for {problem.spec.name}"
        if (lacks := problem.spec.kernel.lacks) in problem.options.items():
            return "has no kernel for {}={!r}".format(*lacks)
        traced = problem.device == TRACED
        device = problem.library.compiled_for() if traced else problem.device
        if not device.startswith("cuda"):
            return f"takes arrays on NVIDIA devices, not on {device}"
        if problem.mode and not traced:
            return f"{problem.mode} arrays need functions that can be differentiated and traced"
        if any(x.alignment == 0 for x in problem.given):
            return "reads memory as it is, not lazily conjugated or negated views"
        if problem.reads and problem.library.name == "jax":
            return "takes run-time values of a program of XLA from the host alone"
        reason = unavailable() or _arrays(problem.library.name).refuses()
        return reason or _too_many_dims(problem)

    def prepare(self, problem: Problem) -> Prepared:
        CudaRunner = _module("runner").CudaRunner
        arrays = _arrays(problem.library.name)
        facts = _module("launch").device_facts(arrays.ordinal_of(problem.device))
        # Called by JAX, where others call.
        build = getattr(arrays, "JaxRunner", CudaRunner)
        runner = build(problem, facts, arrays)
        recorded = problem.choices.sku
        if recorded is not None:
            variant = _recorded(recorded.variant, runner.variants())
            runner = build(problem, facts, arrays, variant)
        # There is nothing to measure on while a framework traces or values are on the device, or on
        # several devices.
        known = not (problem.mode or problem.reads)
        measured = problem.choices.autotune and known and "," not in problem.device
        choices = runner.variants() if measured else ()

        def tuned(given: Sequence[Array]) -> Prepared:
            variant = _module("tune").fastest(problem, facts, arrays, choices, given)
            return _prepared(build(problem, facts, arrays, variant), problem, facts.arch)

        return _prepared(runner, problem, facts.arch, tuned if choices[1:] else None)

    def takes_lists_of(self, problem: Problem) -> bool:
        """Whether many sets of arrays like those of a problem that it takes run in one launch."""
        kernel, library = problem.spec.kernel, problem.library.name
        return (
            kernel is not None
            and kernel.lists
            and library != "jax"
            and bool(_module("schedules.lists").takes(problem))
        )

    def prepare_list(self, problems: Sequence[Problem]) -> ListRunner:
        """What runs such sets."""
        arrays = _arrays(problems[0].library.name)
        facts = _module("launch").device_facts(arrays.ordinal_of(problems[0].device))
        return _module("lists").ListRunner(problems, facts, arrays)  # type: ignore[no-any-return]


def _prepared(
    runner: CudaRunner,
    problem: Problem,
    arch: str,
    tuned: Callable[[Sequence[Array]], Prepared] | None = None,
) -> Prepared:
    """A runner with the facts of it that go into the SKU."""
    steps = runner.steps
    entries = [step.entry for step in steps.kernels]
    variant = steps.variant
    if entries:
        threads = f"{steps.kernels[0].threads} threads"
        variant = f"{variant}, {threads}" if variant else threads
    run = runner.shortest()
    return Prepared(
        run=run,
        kernel="+".join([entry.symbol for entry in entries]) or "none",
        variant=variant,
        arch=arch,
        precision=_guarantee(problem.compute_dtype, steps.deterministic, steps.stable),
        workspace_size=steps.workspace_size,
        tuned=tuned,
        code=_module("compiler").origin(entries, arch),
    )


@cache
def _guarantee(accumulate: str, deterministic: bool, stable: bool) -> PrecisionGuarantee:
    return PrecisionGuarantee(accumulate, accumulate, deterministic, deterministic and stable)


def _recorded(text: str, choices: Sequence[str]) -> str:
    """The variant that a SKU names in front of its threads; "" where there is none such here."""
    return max((name for name in choices if text.startswith(f"{name}, ")), key=len, default="")


@cache
def _module(name: str) -> Any:
    """A module of this package that needs the driver or an array library, loaded on first use."""
    return import_module(f"{__name__}.{name}")


def _arrays(library: str) -> Any:
    """What the runner asks of an array library."""
    return _module(library)


def _too_many_dims(problem: Problem) -> str | None:
    for x in problem.given:
        if x.strides is None or len(x.shape) <= MOST_DIMS:
            continue
        try:
            walkable(merged(x.shape, (x.strides,)))
        except Refusal as refusal:
            return f"{x.name}: {refusal}"
    return None


@cache
def unavailable() -> str | None:
    """Why nothing can be compiled or launched in this process, with what to install."""
    for package, least in _NEEDS:
        try:
            have = version(package)
        except PackageNotFoundError:
            if package == _COMPILER and _module("wheels").installed():
                continue
            return f"needs {package}: {_INSTALL}"
        # The leading digits of each part: 1.3rc1 is a 1.3.
        if tuple(int(re.match(r"\d*", part)[0] or 0) for part in have.split(".")[:2]) < least:  # type: ignore[index]
            wanted = ".".join(map(str, least))
            return f"needs {package} >= {wanted}, found {have}: {_INSTALL}"
    try:
        from cuda.bindings import driver

        status = driver.cuInit(0)[0]
    except (ImportError, RuntimeError) as error:
        return f"cannot load the NVIDIA driver: {str(error).splitlines()[0]}"
    if status != driver.CUresult.CUDA_SUCCESS:
        return f"the NVIDIA driver does not start: {status.name}"
    return None


def foreign(arch: str, device: str) -> str | None:
    """Why kernels for `arch` cannot run on `device`.

    None also where only starting the driver would tell: a process may still be going to fork, and
    CUDA does not work in the children of one that has started it.
    """
    try:
        from cuda.bindings import driver

        status, count = driver.cuDeviceGetCount()
    except (ImportError, RuntimeError):
        return unavailable()
    ordinal = device.removeprefix("cuda:")
    if status != driver.CUresult.CUDA_SUCCESS or not ordinal.isdecimal():
        return None
    if int(ordinal) >= count:
        return f"there is no {device}"
    have = _module("launch").device_facts(int(ordinal)).arch
    return None if have == arch else f"for {arch}, {device} is {have}"


BACKEND = CudaBackend()
