"""A program of its own, since JAX counts its devices once: ops over several devices.

For each op that its input names it prints a line of JSON: what each check found wrong. Its argument
says where: on 4 devices of the host, as its body (``host``) or as a custom call of which XLA sees
only what is said of it (``kernels``); or on all NVIDIA GPUs (``gpus``).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any

if sys.argv[1] != "gpus":
    # Seen is what XLA spreads, not how well it compiles that, which takes most of the time. Beside
    # those of the lane (`conftest`).
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
        " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    )
    os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import lanes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import baracuda as bc
from baracuda.calls import partitioning
from baracuda.calls.op import registry
from baracuda.calls.partitioning import independent
from baracuda.declaration.shapes import Pattern
from baracuda.declaration.spec import Case, OpSpec
from baracuda.testing.cases import Call, Subject, draw

# A GPU rounds the operands of float32 products to TF32 by default, but of small ones it does not:
# what one device has of them all may be rounded where shares of it are not, by more than is near.
jax.config.update("jax_default_matmul_precision", "highest")

WHERE = sys.argv[1]
EXTENT = 4  # of what is spread
DEVICES = len(jax.devices())
COLLECTIVE = re.compile(r"all-gather|all-reduce|all-to-all|collective-\w+|reduce-scatter|\bwhile\b")


class Sharded:
    """One form of an op at one case, one of its batch axes spread over the devices."""

    def __init__(self, call: Call, axis: str) -> None:
        self.call, self.spec = call, call.subject.spec
        patterns = (*call.form.inputs, *call.form.outputs)
        self.bounds = {t.name: t.bound for p in patterns for t in p.terms if t.bound}
        self.label = axis
        self.names = [p.name for p in call.form.inputs if not p.is_option]
        by_name = {p.name: p for p in call.form.inputs}
        self.arrays = [jnp.asarray(call.arrays[n]) for n in self.names]
        self.specs = tuple(self.partition(by_name[n]) for n in self.names)
        self.outs = tuple(map(self.partition, call.form.outputs))
        self.floats = [
            i for i, x in enumerate(self.arrays) if jnp.issubdtype(x.dtype, jnp.floating)
        ]

        # The second derivative of an op is a large program: usually a gradient itself has none.
        self.differentiated = lanes.FULL or self.spec.adjoint_of is None

    def __repr__(self) -> str:
        return f"{self.call.case} {self.call.form.text} over {self.label}"

    def partition(self, pattern: Pattern) -> PartitionSpec:
        """Where `pattern` has the axis; a group that another bounds has the axes of that one."""
        at = []
        for label in pattern.labels(self.call.case.axes):
            group = label.term.name
            number = label.name.removeprefix(group)
            own = f"{self.bounds.get(group, group)}{number}" == self.label
            at.append("devices" if own else None)
        return PartitionSpec(*at)

    def function(self, *arrays: Any) -> tuple[Any, ...]:
        known = dict(zip(self.names, arrays, strict=True))
        result = self.call.subject.function(
            *[known.get(n) for n in self.spec.arrays], **self.call.options
        )
        return result if isinstance(result, tuple) else (result,)

    def gradients(self, cotangents: tuple[Any, ...], *arrays: Any) -> tuple[Any, ...]:
        def of_floats(*some: Any) -> tuple[Any, ...]:
            args = dict(enumerate(arrays)) | dict(zip(self.floats, some, strict=True))
            return self.function(*args.values())

        return tuple(jax.vjp(of_floats, *(arrays[i] for i in self.floats))[1](cotangents))

    @cached_property
    def alone(self) -> Any:
        """The program of one device."""
        return jax.jit(self.function).lower(*self.arrays).compile()

    @cached_property
    def slopes_alone(self) -> Any:
        return jax.jit(self.gradients).lower(self.cotangents, *self.arrays).compile()

    @cached_property
    def want(self) -> tuple[Any, ...]:
        """What one device computes of it all."""
        return tuple(map(np.asarray, self.alone(*self.arrays)))

    @cached_property
    def cotangents(self) -> tuple[Any, ...]:
        return tuple(map(np.cos, self.want))

    @cached_property
    def slopes(self) -> tuple[Any, ...]:
        return tuple(self.slopes_alone(self.cotangents, *self.arrays))

    def local(self) -> Sharded:
        """The same with the options of one device's share: shapes that are options."""
        axes = dict(self.call.case.axes)
        group, number = self.label[0], int(self.label[1:] or 0)
        for name in (group, *(n for n, bound in self.bounds.items() if bound == group)):
            shape = axes[name]
            if not isinstance(shape, tuple):
                axes[name] = shape // DEVICES
                continue
            axes[name] = tuple(n // DEVICES if i == number else n for i, n in enumerate(shape))
        case = Case(axes, **self.call.case.options)
        call = Call(self.call.subject, case, self.call.form, self.call.arrays)
        return Sharded(call, self.label)


def spread(spec: OpSpec) -> list[str]:
    """The forms that are tried of those that can be spread."""
    return lanes.last([form.text for form in spec.signatures if independent(spec, form)])


def sharded(op: str) -> Iterator[Sharded]:
    """Every form, case and batch that is in an output, a group by its last axis; extents of 4."""
    subject = Subject(op, "array_api", "jax", "float32")
    some = spread(subject.spec)
    single = subject.spec.batches or ()
    for case in subject.spec.cases:
        axes = {
            name: tuple(EXTENT for _ in at)
            if isinstance(at, tuple)
            else EXTENT
            if name in single
            else at
            for name, at in case.axes.items()
        }
        wide = Case(axes, **case.options)
        for form in subject.spec.forms(case.options):
            if form.text not in some:
                continue
            call = Call(subject, wide, form, draw(subject.spec, wide, form, "float32"))
            for name, shape in axes.items():
                label = name
                if isinstance(shape, tuple) and shape:
                    # Of a diagonal each element has to know its row.
                    which = 0 if case.options.get("causal") else len(shape) - 1
                    label = f"{name}{which}"
                elif name not in single or isinstance(shape, tuple):
                    continue
                if single and name not in single:
                    continue
                this = Sharded(call, label)
                if any("devices" in spec for spec in this.outs):
                    yield this


def as_on_gpus() -> None:
    """Have the host compute products as GPUs do: large ones in TF32, unless told otherwise."""

    def rounded(x: Any) -> Any:
        bits = jax.lax.bitcast_convert_type(x, jnp.int32)
        return jax.lax.bitcast_convert_type((bits + 0x1000) & ~0x1FFF, jnp.float32)

    def as_on_one(product: Any) -> Any:
        def computed(a: Any, b: Any, **options: Any) -> Any:
            coarse = jax.config.jax_default_matmul_precision is None and a.size + b.size > 100
            if coarse and a.dtype == b.dtype == jnp.float32:
                a, b = rounded(a), rounded(b)
            return product(a, b, **options)

        return computed

    jnp.matmul, jnp.tensordot = as_on_one(jnp.matmul), as_on_one(jnp.tensordot)


def near(got: Sequence[Any], want: Sequence[Any]) -> None:
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def eager(this: Sharded, mesh: Mesh) -> None:
    """Arrays over several devices are taken as they are; what is on none in particular stays so."""
    arrays = [placed(x, s, mesh) for x, s in zip(this.arrays, this.specs, strict=True)]
    got = this.function(*arrays)
    near(got, this.want)
    assert not all(x.sharding.is_fully_replicated for x in got)
    assert not any(x.committed for x in this.function(*this.arrays))
    # They go where the one is that somebody has put on a device.
    other = mesh.devices.flat[1]
    for at in (0, len(this.arrays) - 1):
        some = [*this.arrays]
        some[at] = jax.device_put(some[at], other)
        got = this.function(*some)
        near(got, this.want)
        # A result that no such array has a part in is on none in particular.
        assert all(x.devices() == {other} or not x.committed for x in got)
        assert any(x.devices() == {other} for x in got)


def placed(x: Any, spec: PartitionSpec, mesh: Mesh) -> Any:
    return jax.device_put(x, NamedSharding(mesh, spec))


def collectives(this: Sharded, mesh: Mesh) -> None:
    """None is in the compiled program, of the op and of its gradient; the results are right."""
    arrays = [placed(x, s, mesh) for x, s in zip(this.arrays, this.specs, strict=True)]
    programs: list[Any] = [(this.function, arrays, this.want, this.alone)]
    if this.differentiated:
        spread = [placed(x, s, mesh) for x, s in zip(this.cotangents, this.outs, strict=True)]
        given = (tuple(spread), *arrays)
        programs.append((this.gradients, given, this.slopes, this.slopes_alone))
    for function, given, right, alone in programs:
        program = jax.jit(function).lower(*given).compile()
        # What all devices share has a gradient that is summed over them.
        ways = this.outs if function == this.function else [this.specs[i] for i in this.floats]
        shared = ["devices" not in spec for spec in ways]
        # A loop that one device has too, as over the rows of a scatter, sends nothing.
        own = set(COLLECTIVE.findall(alone.as_text())) | ({"all-reduce"} if any(shared) else set())
        found = sorted(set(COLLECTIVE.findall(program.as_text())) - own)
        assert not found, f"{function.__name__}: {found}"
        if function == this.function:
            assert ("baracuda_" in program.as_text()) == (WHERE != "host"), "what runs"
        got = program(*given)
        near(got, right)
        # A gradient that is 0 throughout may be a constant.
        for x, all_have in zip(got, shared, strict=True):
            assert all_have or not (x.sharding.is_fully_replicated and np.any(x)), "replicated"


def shard_map(this: Sharded, mesh: Mesh) -> None:
    """The op and its gradient of each device's share are those of the whole."""
    share, mapped = this.local(), partial(jax.shard_map, mesh=mesh)
    if not all("devices" in spec for spec in this.outs):
        return
    forward = mapped(share.function, in_specs=this.specs, out_specs=this.outs)
    near(jax.jit(forward)(*this.arrays), this.want)
    if not this.differentiated:
        return
    floats = tuple(this.specs[i] for i in this.floats)
    inside = mapped(share.gradients, in_specs=(this.outs, *this.specs), out_specs=floats)
    near(jax.jit(inside)(this.cotangents, *this.arrays), this.slopes)


def replicated(this: Sharded, mesh: Mesh) -> None:
    """The gradient of an operand that all devices share is the sum over them."""
    last, share = this.floats[-1], this.local()
    if not this.differentiated or last == this.floats[0] or "devices" not in this.specs[last]:
        return
    at = list(this.specs[last]).index("devices")
    arrays, specs = list(this.arrays), list(this.specs)
    arrays[last] = np.split(np.asarray(arrays[last]), DEVICES, at)[0]
    specs[last] = PartitionSpec()
    floats = tuple(specs[i] for i in this.floats)
    inside = jax.shard_map(
        share.gradients, mesh=mesh, in_specs=(this.outs, *specs), out_specs=floats
    )
    got = jax.jit(inside)(this.cotangents, *arrays)[-1]
    arrays[last] = np.concatenate([arrays[last]] * DEVICES, at)
    want = np.asarray(this.gradients(this.cotangents, *arrays)[-1])
    near([got], [sum(np.split(want, DEVICES, at))])


def masks(op: str, mesh: Mesh) -> Iterator[str]:
    """Shards of random words are those of the whole along each axis, and nothing is sent."""
    spec = registry[op].spec
    form = spec.signatures[0]
    free = partitioning.placed(spec, form)
    if not free:
        return
    shape, options = (4, 8, 32), spec.cases[0].options
    arrays = [jnp.asarray(np.random.default_rng(k).normal(size=shape), jnp.float32)
              for k in range(len(form.inputs))]  # fmt: skip
    function = partial(getattr(bc, op), **options)
    for axis in range(3 if spec.elementwise else 2):
        cut = PartitionSpec(*["devices" if at == axis else None for at in range(3)])
        given = [placed(x, cut, mesh) for x in arrays]
        program = jax.jit(function).lower(*given).compile()
        if found := COLLECTIVE.findall(program.as_text()):
            yield f"axis {axis}: {found}"
        got = program(*given)
        # What reads nothing of its input need not lie as that does.
        if got.sharding.is_fully_replicated and not spec.role(form.outputs[0].name).metric:
            yield f"axis {axis}: replicated"
        if not np.allclose(got, function(*arrays), rtol=1e-6, atol=1e-6):
            yield f"axis {axis}: other masks"


CHECKS = (eager, collectives, shard_map, replicated)


def problems(op: str, mesh: Mesh) -> dict[str, list[str]]:
    """What each check finds wrong with an op; all but `collectives` see each form once.

    That sees each axis of each form, in the full lane at every case.
    """
    out: dict[str, list[str]] = {check.__name__: [] for check in CHECKS}
    forms, axes = set(), set()
    for this in sharded(op):
        axis = (this.call.form.text, this.label)
        if axis in axes and not lanes.FULL:
            continue
        axes.add(axis)
        for check in CHECKS if this.call.form.text not in forms else (collectives,):
            try:
                check(this, mesh)
            except Exception as error:
                out[check.__name__].append(f"{this}: {type(error).__name__}: {error}")
        forms.add(this.call.form.text)
    unseen = [text for text in spread(registry[op].spec) if text not in forms]
    return {
        name: [*wrong, *(f"{text}: not spread" for text in unseen)] for name, wrong in out.items()
    } | {"masks": [*masks(op, mesh)]}


if __name__ == "__main__":
    assert DEVICES > 1
    if WHERE != "gpus":
        as_on_gpus()
    if WHERE == "kernels":
        import jax_stand_in
        import pytest

        jax_stand_in.install(pytest.MonkeyPatch())
    devices = Mesh(np.asarray(jax.devices()), ("devices",))
    for line in sys.stdin:
        print(json.dumps(problems(line.strip(), devices)), flush=True)
        # Programs of other ops are of no use to the next.
        jax.clear_caches()
        bc.plan_cache.clear()
