"""Every kernel that the planners can ask for, from made-up problems: no GPU, no memory.

An op's forms come from the registry. What is chosen here is how large the arrays are and how they
lie: whatever a planner tells apart (widths, layouts, index types, accumulation, offsets past 2^31,
powers and sizes of windows) has a `Case`, a layout or an alignment below that leads to it. Windows
have too many combinations for any run: unless ``BARACUDA_ALL_KERNELS=1``, norms other than the
Euclidean go without the alignments between the ends, and without 64-bit offsets in strips, as do
losses; and variants that only `autotune` asks for are planned for fully aligned arrays alone.
Outside of the full lane nothing is planned for alignments between the ends, and all but the first
dtype of an op is dense.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, product
from typing import Any

import lanes
import numpy as np
from kinds import FIRST
from lanes import FULL

import baracuda.ops  # noqa: F401
from baracuda import layouts
from baracuda.backends.cuda import schedules
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import WIDEST, Call, DeviceFacts, Steps, strides_of
from baracuda.calls import check, outputs
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.dtypes import FLOATS, INDICES, named
from baracuda.declaration.spec import Case, OpSpec, Problem
from baracuda.libraries import library
from baracuda.testing.cases import _derived, mixtures, options_of, tried

ALL = os.environ.get("BARACUDA_ALL_KERNELS") == "1"
FACTS = DeviceFacts(0, "sm_90", 132, 232448)
# With so little shared memory no row fits on chip.
SMALL = DeviceFacts(0, "sm_90", 132, 64)
# Without clusters.
OLD = DeviceFacts(0, "sm_80", 108, 166912)
# One that a block of any problem fills.
ALONE = DeviceFacts(0, "sm_90", 1, 232448)
# Whose compiler takes more registers.
NEW = DeviceFacts(0, "sm_100", 148, 232448)
HUGE = 1 << 16
# So many entries are sorted, not inverted by teams.
LONG = 1 << 18

GATED = (
    Case({"b": (6,), "n": 64, "c": ()}),
    Case({"b": (HUGE,), "n": HUGE, "c": ()}),
    Case({"b": (4,), "n": 6, "c": (5, 32)}, axis=1, gate_first=True),
    Case({"b": (6,), "n": 5, "c": (3,)}, axis=1),
)
ELEMENTWISE = (
    Case({"s": (7, 64)}),
    Case({"s": (3, 5, 64)}),
    Case({"s": (HUGE, HUGE)}),
)
LOSS = (
    Case({"s": (7, 64)}),
    Case({"s": (HUGE, HUGE)}, reduction="sum"),
    Case({"s": (7, 64)}, reduction="none"),
)
# Rows for some lanes, for a block, and for more than one; other powers in most of these ways.
ROWWISE = tuple(
    Case({"b": (3, 5), "n": n}, p=p, reduction=reduction)
    for n, p, reduction in (
        (24, 2.0, "none"),
        (4096, 2.0, "mean"),
        (1 << 18, 2.0, "mean"),
        (24, 3.0, "mean"),
        (4096, 3.0, "mean"),
    )
)
CROSS_ENTROPY = (
    *(
        Case({"b": (6,), "v": v, "c": ()}, reduction="mean", metrics=metrics)
        for v in (64, 4096, HUGE >> 2, HUGE >> 1, HUGE, HUGE << 1, HUGE << 2)
        for metrics in (False, True)
    ),
    Case({"b": (6,), "v": 64, "c": (32,)}, axis=1, reduction="none"),
    Case({"b": (6,), "v": 64, "c": (32,)}, axis=1, reduction="none", metrics=True),
)
KL_DIV = tuple(
    Case({"b": (6,), "v": v}, kind=kind, reduction=reduction)
    for v, reduction in (
        (64, "none"),
        *((v, "mean") for v in (64, 4096, HUGE >> 3, HUGE >> 2, HUGE >> 1)),
        *((v, "mean") for v in (HUGE, HUGE << 1, HUGE << 2)),
    )
    for kind in ("forward", "reverse", "jsd")
)
# Of few classes of a teacher, whose number no kernel tells apart.
TOPK_KL_DIV = tuple(
    Case({**c.axes, "k": 5}, reduction=c.options["reduction"])
    for c in KL_DIV
    if c.options["kind"] == "forward"
)


def roped(axes: dict[str, Any]) -> dict[str, Any]:
    """With the axes of tables, of 11 rows, and of keys, which have one head."""
    b, h = axes["b"], axes["h"]
    heads = {"c": b, "g": (1,)} if h else {"c": (*b[:-1], 1), "g": ()}
    return {**axes, "p": 11, **heads, "i": heads["c"], "j": heads["g"], "u": heads["c"],
            "v": heads["g"]}  # fmt: skip


ROPE = tuple(
    Case(roped(axes), interleaved=interleaved, **more)
    for interleaved in (True, False)
    for axes, more in (
        ({"b": (2, 3), "s": 9, "h": (), "d": 64, "r": 32}, {}),
        ({"b": (2,), "s": 9, "h": (3,), "d": 64, "r": 32}, {"seq_axis": 1, "rotary_dim": 32}),
        ({"b": (2,), "s": 5, "h": (), "d": 400, "r": 200}, {}),
        ({"b": (2,), "s": 5, "h": (), "d": 7, "r": 2}, {"rotary_dim": 4}),
        ({"b": (HUGE,), "s": HUGE, "h": (), "d": 16, "r": 8}, {}),
    )
)
# Heads of a few lanes, of a warp, and of as many chunks as lanes hold; what passes through.
HEADS = tuple(
    Case({"b": (2,), "s": 5, "h": 4, "g": 2, "d": d, "r": more.get("rotary_dim", d)}, **more)
    for d, more in (
        (128, {"interleaved": False}),
        (128, {"casting": "before_weight"}),
        (512, {"interleaved": False, "rotary_dim": 256}),
        (40, {"interleaved": False}),
        (7, {"rotary_dim": 4}),
        (511, {"rotary_dim": 0}),
    )
)
POWERS = (1, 2, 3, 4, 2.5, math.inf)
# Powers, kernel, stride and extent. The widest accesses divide an extent of 64 and not one of 41.
# The run-time kernels come at every power with the layouts.
POOL_1D = tuple(
    Case({"b": (4, 3), "l": extent}, norm_type=p, kernel_size=k, stride=s)
    for powers, k, s, extent in (
        (POWERS, 9, 9, 64),
        ((2, 2.5), 2, 2, 64),
        ((2, 2.5), 4, 1, 64),
        ((2,), 2, 2, 41),
        ((2,), 3, 2, 41),
    )
    for p in powers
)
POOL_2D = tuple(
    Case({"b": (2, 3), "h": 16, "w": extent}, norm_type=p, kernel_size=k, stride=s)
    for powers, k, s, extent in (
        (POWERS, 2, 2, 64),
        (POWERS, 3, 1, 64),
        ((2,), 2, 2, 41),
        ((2,), 3, 1, 41),
        ((2,), 3, 2, 64),
        ((2,), (3, 2), (2, 3), 64),
        ((2,), (1, 2), (1, 9), 64),
    )
    for p in powers
)
INDEXING = (
    Case({"b": (8,), "n": 48, "c": (), "i": (8,), "k": 32, "j": ()}, axis=1),
    Case({"b": (8,), "n": 47, "c": (), "i": (8,), "k": 31, "j": ()}, axis=1),
    Case({"b": (8,), "n": 48, "c": (), "i": (8,), "k": 2, "j": ()}, axis=1),
    Case({"b": (), "n": 16, "c": (64,), "i": (), "k": 9, "j": (64,)}, axis=0),
    Case({"b": (3,), "n": 4096, "c": (64,), "i": (3,), "k": 900, "j": (64,)}, axis=1),
    Case({"b": (3,), "n": 60000, "c": (), "i": (3,), "k": 64, "j": ()}, axis=1),
    Case({"b": (3,), "n": 6, "c": (16,), "i": (2,), "k": 5, "j": (16,)}, axis=1),
    Case({"b": (), "n": 90000, "c": (), "i": (), "k": 1 << 20, "j": ()}, axis=0),
    Case({"b": (2,), "n": 50000, "c": (), "i": (2,), "k": 1 << 20, "j": ()}, axis=1),
    Case({"b": (HUGE,), "n": 64, "c": (), "i": (HUGE,), "k": HUGE, "j": ()}, axis=1),
    Case({"b": (), "n": 9000, "c": (64,), "i": (), "k": LONG, "j": (64,)}, axis=0),
    Case({"b": (), "n": HUGE, "c": (HUGE,), "i": (), "k": HUGE, "j": (HUGE,)}, axis=0),
)
REDUCTIONS = tuple((how, mine) for how in ("sum", "mean", "max", "min") for mine in (False, True))
# ids of two axes and of one, rows for vectors, odd ones and single numbers; very many ids.
EMBEDDING = (
    Case({"i": (6, 50), "n": 90, "d": 64}),
    Case({"i": (300,), "n": 9000, "d": 33}),
    Case({"i": (300,), "n": 9, "d": 1}),
    Case({"i": (LONG,), "n": 9000, "d": 64}),
)
# The same of bags, by rows and by offsets.
BAGS = tuple(
    Case({"n": n, "d": d, "b": t // 5, "k": 5, "t": t, "m": 60}, reduction=how)
    for how in ("sum", "mean", "max")
    for t, n, d in ((300, 90, 64), (300, 9000, 33), (300, 9, 1), (LONG, 9000, 64))
)
SLICES = (
    Case({"b": (), "n": 90, "c": (8, 8), "k": 300}, axis=0),
    Case({"b": (3,), "n": 9, "c": (7,), "k": 30}, axis=1),
    Case({"b": (3,), "n": 9000, "c": (), "k": 300}, axis=-1),
    Case({"b": (), "n": 9000, "c": (64,), "k": LONG}, axis=0),
)
# Rows for vectors, odd ones and single numbers, of ids in any order and in order; very many.
SEGMENTS = tuple(
    Case({"e": e, "d": d, "n": n}, num_segments=n, sorted=ascending)
    for e, d, n in ((300, (8, 8), 90), (300, (33,), 9000), (300, (), 9), (LONG, (64,), 9000))
    for ascending in (False, True)
)
# The same, rows for more than a block, and very many.
PERMUTED = (
    *[
        Case({"t": 30, "k": k, "d": d, "n": 128})
        for k in (2, 3)
        for d in ((8, 8), (33,), (), (4096,))
    ],
    Case({"t": LONG, "k": 3, "d": (64,), "n": LONG}),
)
# Rows for some lanes, for a block near, for one that is left over, for one far, for clusters of two
# to eight, and for more than a block.
NORM = tuple(
    Case({"b": (3, 5), "n": n}) for n in (20, 4096, 5000, 8192, 16384, 32768, 65536, 1 << 18)
)
# Sets for lanes, a block and more, of odd and of even length; columns; as many as clusters keep,
# groups and channels; more bytes than 32 bits count.
CHANNEL_NORM = tuple(
    Case({"n": n, "c": c, "s": s}, num_groups=2)
    for n, c, s in (
        (3, 6, (5, 7)),
        (20, 6, (64,)),
        (20, 8, (7,)),
        (40, 32, ()),
        (2, 6, (20, 96)),
        (2, 4, (40, 512)),
        (64, 4, (40, 512)),
        (2, 96, (40, 512)),
        (64, 32, (1024, 1024)),
    )
)
SOFTMAX = tuple(
    Case({"b": (3, 5), "n": n, "c": c}, axis=2, causal=causal)
    for n, c, causal in (
        (24, (), False),
        (4096, (), False),
        (1 << 18, (), False),
        (24, (), True),
        (4096, (), True),
        (1 << 18, (), True),
        (40, (64,), False),
        (4096, (64,), False),
        (40, (41,), False),
        (1 << 15, (64,), False),
    )
)
# The same without a diagonal, and with results that keep the axis or not.
SOFTMAX_DROPOUT = tuple(
    Case({k: case.axes[k] for k in "bn"}, causal=case.options["causal"], p=0.1, seed=1)
    for case in SOFTMAX
    if not case.axes["c"]
)
PLAIN = tuple(Case(case.axes, axis=2) for case in SOFTMAX if not case.options["causal"])
LOGSUMEXP = tuple(Case(c.axes, axis=2, keepdims=len(c.axes["c"]) > 0) for c in PLAIN)
# Channels of many elements, side by side, and one of all, at any width; more than 32 bits count.
PRELU = tuple(
    Case({"n": n, "c": c, "s": s})
    for n, c, s in ((5, 6, (64,)), (5, 6, (3, 40)), (70, 64, ()), (1, 5, ()), (7, 1, (64,)),
                    (HUGE, HUGE, ()))
)  # fmt: skip
# By op or category. Ops whose arrays all have one shape need none of their own: for their schedule
# `lerp` stands with all that it tells apart.
CASES = {
    "lerp": ELEMENTWISE,
    "gated": GATED,
    "loss": LOSS,
    "cosine_embedding_loss": ROWWISE[:3],
    "triplet_margin_loss": ROWWISE,
    "cross_entropy": CROSS_ENTROPY,
    "log_prob": tuple(
        Case({"b": (6,), "v": v}, entropy=entropy)
        for v in (64, 4096, HUGE >> 2, HUGE >> 1, HUGE, HUGE << 1, HUGE << 2)
        for entropy in (False, True)
    ),
    "kl_div_with_logits": KL_DIV,
    "kl_div_with_logits_with_gradient": KL_DIV,
    "topk_kl_div_with_logits": TOPK_KL_DIV,
    "topk_kl_div_with_logits_with_gradient": TOPK_KL_DIV,
    "nll_loss": (*CROSS_ENTROPY, Case({"b": (1 << 20,), "v": 8, "c": ()})),
    "rope": ROPE,
    "qk_norm_rope": HEADS,
    "lp_pool1d": POOL_1D,
    "lp_pool2d": POOL_2D,
    "indexing": INDEXING,
    "embedding": EMBEDDING,
    "embedding_bag": BAGS,
    "embedding_backward_rows": tuple(
        Case({**c.axes, "m": m}, num_embeddings=c.axes["n"])
        for c, m in zip(EMBEDDING, (300, 300, 300, LONG), strict=True)
    ),
    "scatter_reduce": tuple(
        Case(case.axes, axis=case.options["axis"], reduction=how, include_self=mine)
        for how, mine in REDUCTIONS
        for case in (*INDEXING[:1], *INDEXING[6:7], *INDEXING[9:])
    ),
    "index_select": SLICES,
    "index_add": SLICES,
    "permute_rows": tuple(Case({**case.axes}, num_rows=case.axes["n"]) for case in PERMUTED),
    "unpermute_rows": PERMUTED,
    "segment_sum": SEGMENTS,
    "segment_mean": SEGMENTS,
    "segment_max": SEGMENTS,
    "segment_softmax": SEGMENTS,
    "norm": NORM,
    "channel_norm": CHANNEL_NORM,
    "softmax": SOFTMAX,
    "softmax_dropout": SOFTMAX_DROPOUT,
    "logsumexp": LOGSUMEXP,
    "l2_normalize": PLAIN,
    "ema": ELEMENTWISE,
    "sum_of_squares": ELEMENTWISE,
    "clip_scale": ELEMENTWISE,
    "scale_by": ELEMENTWISE,
    "optimiser": (
        *ELEMENTWISE,
        Case({"s": (7, 64)}, copy=True),
        Case({"s": (7, 64)}, stochastic_rounding=True, seed=5, offset=2**33),
    ),
    "prelu": PRELU,
    # Vectors, their rests, one word for each element, and more than 32 bits count.
    "stochastic_depth": tuple(
        Case({"n": n, "s": s})
        for n, s in ((5, (64,)), (5, (3, 41)), (64, ()), (1, (24,)), (HUGE, (HUGE,)))
    ),
}

# How the arrays of a call lie: the floating ones, the integer one, the outputs ("": new ones).
LAYOUTS = (
    ("dense", "dense", ""),
    ("dense", "shared", ""),
    ("dense", "dense", "padded"),
    ("padded", "dense", ""),
    ("padded", "padded", "padded"),
    ("ragged", "ragged", ""),
    ("stepped", "stepped", "stepped"),
    ("stepped", "dense", ""),
    ("turned", "turned", ""),
    ("far", "far", ""),
    ("far", "shared", "far"),
    ("far-stepped", "far-stepped", "far-stepped"),
)
# Those without which a template argument would be missing: `test_kernels` looks.
FEW = (
    ("dense", "dense", ""),
    ("dense", "shared", ""),
    ("stepped", "dense", ""),
    ("turned", "turned", ""),
    ("far", "far", ""),
    ("far", "shared", "far"),
)


def strides(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Of an array of `shape`, in elements.

    ``dense``; ``padded`` with room for 16 elements behind each row, ``ragged`` for one; every
    other element of it (``stepped``); ``turned`` for the axes in reverse; ``far`` for rows 2^31
    apart; ``shared`` for one element along all axes but the first.
    """
    if layout == "turned":
        return layouts.contiguous(shape[::-1])[::-1]
    if layout == "shared":
        return (*layouts.contiguous(shape[:1]), *(0 for _ in shape[1:]))
    step, out = 2 if layout.endswith("stepped") else 1, []
    room = {"padded": 16, "ragged": 1, "stepped": 2}.get(layout, 0)
    for axis in reversed(range(len(shape))):
        out.append(step)
        step = step * shape[axis] + room
        if layout.startswith("far") and axis == len(shape) - 1:
            step += 1 << 31
    return tuple(reversed(out))


def phantom(shape: tuple[int, ...], layout: str, dtype: str) -> np.ndarray[Any, Any]:
    """An array of any size that is never read."""
    kind = library("numpy").dtype(dtype)
    steps = [s * kind.itemsize for s in strides(shape, layout)]
    return np.lib.stride_tricks.as_strided(np.zeros(1, kind), shape, steps, writeable=False)


def functors(spec: OpSpec) -> list[dict[str, str]]:
    """The values of the named options that choose among functors, the usual ones first."""
    named = spec.options.keys() - spec.conditions
    names = [k for k, v in spec.defaults.items() if isinstance(v, str) and k in named]
    if spec.kernel is None or spec.kernel.schedule != "elementwise":
        return [{}]
    values = [
        dict.fromkeys([spec.defaults[k], *(c.options[k] for c in spec.cases if k in c.options)])
        for k in names
    ]
    return [dict(zip(names, chosen, strict=True)) for chosen in product(*values)]


def cases(spec: OpSpec) -> tuple[Case, ...]:
    """The sizes at which an op is planned; a named option is tried at all of its values."""
    own = CASES.get(spec.name.removesuffix("_backward")) or CASES.get(spec.category)
    if own is None and not spec.pointwise:
        raise KeyError(f"no sizes for {spec.name}: give its category some in CASES")
    own = own or ELEMENTWISE
    chosen = functors(spec)
    return own + tuple(Case(c.axes, **c.options, **more) for c in own for more in chosen[1:])


def problems(spec: OpSpec, dtype: str, every: bool = FULL) -> Iterator[tuple[Problem, str]]:
    """Every form of an op, at all sizes and in all layouts; with the layout of given outputs."""
    for (case, form), layout in product(tried(spec, cases(spec)), layouts_of(spec, dtype, every)):
        options = options_of(spec, case)
        if (
            "rotary_dim" in spec.options
            and options.get("rotary_dim") is None
            and case.axes["d"] % 2
        ):
            continue
        if layout[0] == "far" and thin(options):
            continue
        axes = {**case.axes, **_derived(spec, case, case.axes)}
        kinds = INDICES if any(p.name in spec.integers for p in form.inputs) else ("",)
        for index, mixed in product(kinds, mixtures(spec, form, dtype)):
            arrays: dict[str, Any] = dict.fromkeys(spec.arrays)
            for pattern in form.inputs:
                shape, integer = pattern.shape(axes), pattern.name in spec.integers
                if pattern.is_option:
                    options[pattern.name] = shape
                else:
                    kind = spec.dtype_of(pattern.name, dtype, index)
                    if spec.role(pattern.name).wide in mixed:
                        kind = named(dtype).accumulate
                    arrays[pattern.name] = phantom(shape, layout[integer], kind)
            for more in results(spec, dtype):
                given = {**options, **more}
                yield check.problem(spec, list(arrays.values()), given, DEFAULT), layout[2]


def layouts_of(spec: OpSpec, dtype: str, every: bool) -> tuple[tuple[str, ...], ...]:
    """In which layouts a dtype is planned: all, or those that lead to every template argument.

    These are those of the first dtype: the arrays of others are dense then, since the arguments
    that a layout leads to do not depend on the dtype.
    """
    if every:
        return LAYOUTS
    if dtype != dtypes(spec)[0]:
        return LAYOUTS[:1]
    return tuple([each for each in FEW if spec.integers or each[1] != "shared"])


def results(spec: OpSpec, dtype: str) -> Iterator[dict[str, str]]:
    """The options that give rows of another dtype than they have: wider, or narrower again."""
    yield {}
    chosen = [role.chosen for role in spec.roles.values() if role.chosen]
    if not chosen or spec.kernel.schedule != "rows":
        return
    wide = named(dtype).accumulate
    others = [d for d in FLOATS if named(d).accumulate == dtype != d] if spec.adjoint_of else [wide]
    yield from ({name: other} for name in chosen for other in others if other != dtype)


def thin(options: Mapping[str, Any]) -> bool:
    """Whether only some combinations are asked for."""
    return not ALL and (options.get("norm_type", 2) != 2 or "reduction" in options)


def alignments(problem: Problem) -> list[int]:
    """What the addresses may be multiples of."""
    every = [1 << i for i in range(5) if 1 << i >= named(problem.dtype).itemsize]
    few = not FULL or thin(problem.options) or (derived(problem.spec) and not ALL)
    return [every[0], WIDEST] if few else every


def derived(spec: OpSpec) -> bool:
    """Whether nothing is said of the op but that it is pointwise: there are many of these."""
    names = (spec.name.removesuffix("_backward"), spec.category)
    return spec.pointwise and not any(name in CASES for name in names)


def call(
    problem: Problem, out: str = "", add: bool = False, alignment: int = WIDEST,
    device: DeviceFacts = FACTS,
) -> Call:  # fmt: skip
    """A call of a problem, into outputs of some layout."""
    outs = tuple(strides(x.shape, out) if out else strides_of(x) for x in problem.outputs)
    return Call(problem, device, outs, add, alignment)


def steps(call: Call) -> Steps:
    """What is launched for a call."""
    return schedules.plan(call)


def devices(spec: OpSpec) -> tuple[DeviceFacts, ...]:
    """Those for which an op's schedule plans other kernels."""
    if spec.kernel.schedule == "planes":
        # Only architectures of the full lane have other kernels.
        return (FACTS, NEW) if FULL or ALL else (FACTS,)
    if spec.kernel.schedule in ("scatter", "cross_entropy", "log_prob", "kl_div", "topk_kl_div"):
        return (FACTS, SMALL, OLD)
    if spec.kernel.schedule.startswith(("combine", "last_write")):
        return (FACTS, ALONE)
    return (FACTS,)


def planned(problem: Problem, out: str, device: DeviceFacts) -> Iterator[Entry]:
    """The kernels of a problem on a device, at every alignment, written and added to."""
    spec = problem.spec
    adds = (False, True)[: 1 + spec.accumulates]
    for alignment, add in product(alignments(problem), adds):
        usual = call(problem, out, add, alignment, device)
        others = schedules.variants(usual)[1:] if ALL or alignment == WIDEST else ()
        for variant in ("", *others):
            yield from (s.entry for s in steps(usual._replace(variant=variant)).kernels)
        if alignment == WIDEST and add == spec.accumulates:
            for some in delivered(usual):
                yield from (s.entry for s in steps(some).kernels)


def delivered(usual: Call) -> Iterator[Call]:
    """A call that adds to one output alone, and that keeps sums wider than the rest."""
    problem, many = usual.problem, len(usual.outs)
    wide = tuple([bool(outputs.may_have(problem, x)[1:]) for x in problem.outputs])
    alone = [tuple([i == k for i in range(many)]) for k in range(many)]
    if many > 1 and problem.spec.accumulates:
        yield from (usual._replace(some=some) for some in alone)
    if any(wide):
        yield usual._replace(wide=wide, add=False)
        yield usual._replace(wide=wide, some=wide if many > 1 else ())
        if many > 1:
            yield usual._replace(wide=wide, some=alone[-1])


def dtypes(spec: OpSpec) -> tuple[str, ...]:
    """Those whose kernels differ: an op that only moves elements has one for each size."""
    if not spec.moves:
        return spec.dtypes
    return tuple({named(d).itemsize: d for d in reversed(spec.dtypes)}.values())


def usual(spec: OpSpec) -> tuple[str, ...]:
    """Of these float32 and bfloat16, where an op computes; in the full lane all."""
    every = dtypes(spec)
    if FULL or spec.moves:
        return every
    return tuple(filter(lanes.common, every)) or every


@cache
def _planned(op: str, dtype: str, every: bool = FULL) -> dict[Entry, set[DeviceFacts]]:
    """Every kernel of an op for a dtype, with the devices that it is planned for."""
    names: dict[str, Entry] = {}
    found: dict[Entry, set[DeviceFacts]] = {}
    spec = registry[op].spec
    for problem, out in problems(spec, dtype, every):
        for device in devices(spec):
            for entry in planned(problem, out, device):
                other = names.setdefault(entry.symbol, entry)
                if other != entry:
                    raise ValueError(f"two kernels are called {entry.symbol}: {other} and {entry}")
                found.setdefault(entry, set()).add(device)
    return found


def entries(op: str, dtype: str, every: bool = FULL) -> tuple[Entry, ...]:
    """Every kernel of an op for a dtype, each once.

    Raises
    ------
    ValueError
        Where two kernels have one name.
    """
    return tuple(_planned(op, dtype, every))


def launched(op: str, dtype: str, new: bool) -> tuple[Entry, ...]:
    """The kernels of an op on devices of these or of earlier days."""
    if NEW not in devices(registry[op].spec):
        return entries(op, dtype)
    device = NEW if new else FACTS
    return tuple(e for e, known in _planned(op, dtype).items() if device in known)


def compiled(op: str, dtype: str, arch: str) -> tuple[Entry, ...]:
    """The kernels that an architecture has."""
    capability = int(arch.removeprefix("sm_"))
    return tuple(e for e in launched(op, dtype, capability >= 100) if needs(e) <= capability)


def whole(op: str, dtype: str, arch: str) -> tuple[Entry, ...]:
    """Each two template arguments of these together; of a pointwise op that differs from others by
    its functor alone, each argument and what large arrays run through."""
    every = compiled(op, dtype, arch)
    if ALL:
        return every
    if op in FIRST and not derived(registry[op].spec):
        return tuple(lanes.covering({entry: pairs(entry) for entry in every}))
    widest = f"_v{WIDEST // named(dtype).itemsize}_"
    large = [e for e in every if "_flat_" in e.symbol and widest in e.symbol and "i32" in e.symbol]
    return tuple(dict.fromkeys([*large, *covering(every)]))


@cache
def wanted(file: str, arch: str) -> dict[Entry, frozenset[Any]]:
    """All kernels of a source file, with what a covering set has to have of each.

    In the full lane that is each template argument, elsewhere the schedule and the dtype, of the
    last forms first: these have all that is optional.
    """
    every: dict[Entry, str] = {}
    for name, op in registry.items():
        if op.spec.kernel and op.spec.kernel.file == file:
            for dtype in usual(op.spec):
                for entry in compiled(name, dtype, arch):
                    every.setdefault(entry, dtype)
    if FULL:
        return {entry: arguments(entry) for entry in every}
    return {
        entry: frozenset({entry.schedule.partition("<")[0], every[entry]})
        for entry in reversed(every)
    }


def needs(entry: Entry) -> int:
    """The compute capability that a kernel takes, times ten."""
    bulk = entry.schedule.startswith(("KeptPlanes<", "StreamedRows<"))
    return 90 if bulk or entry.cluster > 1 else 80


@cache
def arguments(entry: Entry) -> frozenset[tuple[str, int, str]]:
    """The template arguments of an entry: schedule, place and value."""
    name, _, inside = entry.schedule.removesuffix(">").partition("<")
    depth, parts = 0, [""]
    for letter in inside:
        depth += (letter == "<") - (letter == ">")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return frozenset((name, place, part.strip()) for place, part in enumerate(parts))


def pairs(entry: Entry) -> frozenset[Any]:
    """Each template argument of an entry, alone and with each other one."""
    every = sorted(arguments(entry))
    return frozenset([*every, *combinations(every, 2)])


def covering(every: Sequence[Entry]) -> tuple[Entry, ...]:
    """Entries among which each template argument of `every` has all of its values."""
    return tuple(lanes.covering({entry: arguments(entry) for entry in every}))
