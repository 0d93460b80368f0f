"""Every kernel compiles without a GPU, in registers alone.

Usually that is one kernel of each schedule of a source file in float32 and one in bfloat16, for
sm_90; of what only moves elements one of each size.
The full lane compiles each two template arguments that the planners combine, for sm_90 (in float16
and float64, and of pointwise ops that differ by their functors alone, each argument), a set with
each argument of each op for sm_80 and sm_100, and one of each file for sm_86, sm_89 and sm_120.
``BARACUDA_ALL_KERNELS=1`` compiles the whole product, for hours.

What a kernel takes is kept by the digest of its source and compiler (`builds`).
``BARACUDA_KERNEL_REPORT=FILE`` writes it (registers, bytes of stack, bytes spilled) as JSON, by
architecture and kernel; a later run adds to the file and replaces.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.backend import Refusal
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.shapes import Signature, parse
from baracuda.declaration.spec import OpSpec

try:
    version("cuda-core"), version("nvidia-cuda-nvrtc")
except PackageNotFoundError as error:
    pytest.skip(f"needs {error.name}: pip install 'baracuda[cuda]'", allow_module_level=True)

import lanes
import plannable
from builds import built, place
from cuda.core.utils import make_program_cache_key

from baracuda.backends.cuda import compiler
from baracuda.backends.cuda.compiler import Entry, Usage

EVERY_ARCH = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
WHOLE = EVERY_ARCH if plannable.ALL else ("sm_90",)
COVERED = () if plannable.ALL else ("sm_80", "sm_100")

# Kernels that may spill or have a stack, by a part of the name: bytes allowed, and why.
ALLOWED: dict[str, tuple[int, str]] = {
    "_tiles_": (96, "the way for ranges too wide for one scale is out of line, with a stack"),
    "_flat_": (128, "sm_100: four blocks at once outweigh a few registers of indices"),
    "16_columns_v8": (64, "as many threads as hold a long column outweigh a few registers"),
    "logsumexp_backward_f16_columns_v8": (432, "the same, as softmax itself; sm_100 and sm_120"),
    "l2_normalize_backward_f16_columns_v8": (232, "the same, of two inputs; sm_100 and sm_120"),
    "softmax_backward_f16_columns_v8": (180, "the same, of two inputs; sm_100 and sm_120"),
    "softmax_f16_columns_v8": (384, "the same; sm_100"),
    "l2_normalize_f16_columns_v8": (200, "the same; sm_100"),
    "f16_block_wide": (104, "sm_120: as many threads as hold a row outweigh a few registers"),
    "_kept_c": (32, "sm_100: the next row in registers outweighs a few registers"),
    "_streamed_c": (96, "sums of all of a row outweigh a few registers of an output added to"),
    "_far_c": (288, "as many threads as hold the longest rows outweigh a few registers"),
    "layer_norm_backward_": (64, "the same; a second look at rows is rare"),
    "softmax_dropout_backward_f64_": (176, "float64 waits for its units; a mask beside it"),
    "softmax_dropout_backward_": (56, "as many threads as hide loads outweigh a few registers"),
    "softmax_dropout_": (16, "the same"),
    "softmax_f64_": (32, "a few pointers beside two exponentials of float64 at once"),
    "_add_f32": (192, "columns wider than rows, beside an output that is added to"),
    "_long_wide_jsd_add": (8, "as many threads as hold a long row outweigh two registers"),
    "_wide_clusters_": (48, "sm_120: as many threads as hold a long row outweigh a few registers"),
    "_wide_add_clusters_": (24, "sm_100: as many threads as hold a long row, the same"),
    "_f64_kept_": (128, "sm_120: float64 waits for its few units there, not for memory"),
    "_add0_how": (32, "sm_120: sums kept in float32 beside float16 that stays on chip"),
    "_sum_parts": (96, "up to sm_89: two blocks at once outweigh a few registers of digits"),
    "16_Copy_rows_v8_d2": (128, "as many threads as hide strided rows outweigh a few registers"),
    "16_rows_v8_d2_i32_wide5": (32, "the same"),
    "_lists_v8": (8, "sm_86 and sm_89: one register of the longest lists"),
    "embedding_backward_bf16_lists_v8": (52, "rows in flight outweigh a few registers of a scale"),
    "16_lists_v8_beside4": (24, "sm_100: the same"),
    "segment_softmax_backward_": (168, "the same; in float32 and 16 bits 20 bytes on sm_90"),
    "segment_softmax_f64_lists_": (536, "float64 has as many rows in flight; fewer were not timed"),
    "_sortdigit_": (216, "sm_100 and sm_120: two blocks at once; one was not timed"),
    "norm_backward_f16_block_c1_vectors_f32": (124, "sm_100: columns wider than rows"),
    "norm_add_f16_block_c1_vectors_f32": (120, "sm_80 and sm_100: the same"),
    "add_layer_norm_f16_block_c1_vectors_f32": (8, "sm_100: the same"),
    "norm_backward_bf16_block_c1_vectors_f32": (124, "the same"),
    "16_preal_k3x3_s1x1_r3": (8, "sm_80: two registers of a window"),
}

KINDS = [
    pytest.param(name, dtype, id=f"{name}-{dtype}")
    for name, op in registry.items()
    if op.spec.kernel and name in lanes.of_kernels()
    for dtype in plannable.dtypes(op.spec)
]
# The op of each names it where a run is about some ops.
FILES = {
    op.spec.kernel.file: name
    for name, op in registry.items()
    if op.spec.kernel and name in lanes.of_kernels()
}


@pytest.fixture(scope="session")
def report() -> Iterator[dict[str, dict[str, Any]]]:
    """What was measured, by architecture and kernel; written at the end."""
    measured: dict[str, dict[str, Any]] = {}
    yield measured
    path = os.environ.get("BARACUDA_KERNEL_REPORT")
    if path and measured:
        # The workers of a parallel run share the file.
        with Path(path).open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = json.loads(file.read() or "{}")
            for arch, found in measured.items():
                known.setdefault(arch, {}).update(found)
            file.truncate(0)
            json.dump(known, file, indent=1, sort_keys=True)


def usages(entries: Sequence[Entry], arch: str) -> Iterator[Usage]:
    """What the assembler says of kernels; it is asked once for each source and architecture.

    Those that are not kept are compiled together: reading a source takes a third of the time.
    """
    made: dict[Entry, Usage] = {}
    keys = {
        entry: make_program_cache_key(
            code=entry.source, code_type="c++", options=compiler._options(arch), target_type="cubin"
        )
        for entry in entries
    }
    together: dict[Any, list[Entry]] = {}
    for entry, key in keys.items():
        if not place(key, suffix=".json").exists():
            # Kernels that move elements call shared memory alike, of each size another type.
            sizes = frozenset(re.findall(r"\bu\d+\b", entry.schedule))
            together.setdefault((entry.text, sizes), []).append(entry)
    for some in together.values():
        made.update(compiler.usages(some, arch))
    for entry, key in keys.items():

        def write(to: Path, entry: Entry = entry) -> None:
            to.write_text(json.dumps(asdict(made[entry])))

        yield Usage(**json.loads(built(write, key, suffix=".json").read_text()))


def look(entries: Sequence[Entry], arch: str, report: dict[str, dict[str, Any]]) -> None:
    """Compile kernels, and find those that need memory for what should be in registers."""
    remarks = []
    # Few at a time, so that no program grows too large for the memory of a small machine.
    parts = (entries[i : i + 24] for i in range(0, len(entries), 24))
    uses = chain.from_iterable(usages(part, arch) for part in parts)
    for entry, use in zip(entries, uses, strict=True):
        report.setdefault(arch, {})[entry.symbol] = asdict(use)
        most = max((b for part, (b, _) in ALLOWED.items() if part in entry.symbol), default=0)
        if max(use.spilled, use.stack) > most:
            remarks.append(f"{entry.symbol} for {arch}: {use}, {entry.schedule}")
    assert not remarks, "\n".join(remarks)


@pytest.mark.slow("some files have fifty kernels, of half a second each")
@pytest.mark.parametrize("arch", lanes.cases(EVERY_ARCH, lanes.thinned("sm_90".__eq__)))
@pytest.mark.parametrize(("file", "op"), FILES.items())
def test_the_kernels_of_a_file_compile_and_stay_in_registers(
    file: str, op: str, arch: str, report: dict[str, dict[str, Any]]
) -> None:
    wanted = plannable.wanted(file, arch)
    for name, dtype in (kind.values for kind in KINDS):
        spec = registry[name].spec
        if spec.kernel.file == file and dtype in plannable.usual(spec):
            assert wanted.keys() >= {*plannable.compiled(name, dtype, arch)}
    look(lanes.covering(wanted), arch, report)


@pytest.mark.full
@pytest.mark.slow("every kernel of the file's ops is planned twice")
@pytest.mark.parametrize(("file", "op"), FILES.items())
def test_few_layouts_lead_to_every_template_argument(file: str, op: str) -> None:
    few, every = (
        frozenset[Any]().union(
            *(
                plannable.arguments(entry)
                for name, found in registry.items()
                if found.spec.kernel and found.spec.kernel.file == file
                for dtype in plannable.dtypes(found.spec)
                for entry in plannable.entries(name, dtype, layouts)
            )
        )
        for layouts in (False, True)
    )
    assert few == every, f"plannable.FEW lacks a layout: {sorted(every - few)}"


@pytest.mark.full
@pytest.mark.parametrize("arch", WHOLE)
@pytest.mark.parametrize(("op", "dtype"), KINDS)
def test_a_kernel_compiles_and_stays_in_registers(
    op: str, dtype: str, arch: str, report: dict[str, dict[str, Any]]
) -> None:
    some = plannable.whole(op, dtype, arch)
    # Kernels of float16 are those of bfloat16 but for how an element is rounded; those of float64
    # wait for its units, not for memory.
    alone = dtype in ("float16", "float64") and not plannable.ALL
    look(plannable.covering(some) if alone else some, arch, report)


@pytest.mark.full
@pytest.mark.parametrize("arch", COVERED)
@pytest.mark.parametrize("op", dict(kind.values for kind in KINDS))
def test_the_kernels_of_an_op_compile_and_stay_in_registers(
    op: str, arch: str, report: dict[str, dict[str, Any]]
) -> None:
    every = (plannable.compiled(op, d, arch) for d in plannable.dtypes(registry[op].spec))
    look(plannable.covering([*chain.from_iterable(every)]), arch, report)


@pytest.mark.parametrize("name", [n for n, op in registry.items() if op.spec.moves])
def test_what_only_moves_elements_has_one_kernel_for_each_size(name: str) -> None:
    compiled = {e.schedule for d in plannable.dtypes(registry[name].spec) for e in
                plannable.entries(name, d)}  # fmt: skip
    for dtype in registry[name].spec.dtypes:
        assert {e.schedule for e in plannable.entries(name, dtype)} <= compiled


def test_every_op_with_a_kernel_is_planned_in_every_form() -> None:
    for name, op in registry.items():
        assert (op.spec.kernel is None) == op.spec.composite, name
        if op.spec.composite:
            continue
        forms = {problem.signature for problem, _ in plannable.problems(op.spec, "float32")}
        assert forms == set(op.spec.signatures), name


# Ops whose schedules ask for roles and places. Sets of planes and packed arrays have names.
ANYHOW = [
    name
    for name, op in registry.items()
    if op.spec.kernel and op.spec.kernel.schedule != "planes" and not op.spec.packed
]

# Shapes of the arrays and options, for any length.
LENGTHS: dict[str, Callable[[int], tuple[list[tuple[int, ...]], dict[str, Any]]]] = {
    "swiglu": lambda s: ([(2, s, 64)], {}),
    "geglu_backward": lambda s: ([(2, s, 32), (2, s, 64)], {}),
    "lerp": lambda s: ([(s, 64), (s, 64)], {}),
    "rope": lambda s: ([(2, 4, s, 64)], {}),
    "rope_backward": lambda s: ([(2, s, 4, 64), (s,)], {"seq_axis": 1}),
    "lp_pool1d": lambda s: ([(s, 64)], {"norm_type": 2, "kernel_size": 2}),
    "gather": lambda s: ([(s, 64), (s, 64)], {"axis": 1}),
    "gather_backward": lambda s: ([(s, 64), (s, 64)], {"axis": 1, "src_shape": (s, 128)}),
}


@pytest.mark.parametrize("name", list(LENGTHS))
def test_new_lengths_ask_for_the_same_kernels(name: str) -> None:
    spec, found = registry[name].spec, set()
    for length in range(2, 202):
        shapes, options = LENGTHS[name](length)
        kinds = ["int64" if array in spec.integers else "float32" for array in spec.arrays]
        arrays = [
            plannable.phantom(shape, "dense", kind)
            for shape, kind in zip(shapes, kinds, strict=False)
        ]
        call = plannable.call(check.problem(spec, arrays, options, DEFAULT))
        found.add(tuple(step.entry for step in plannable.steps(call).kernels))
    assert len(found) == 1


def renamed(spec: OpSpec) -> OpSpec:
    """The declaration with other names of arrays, which stand in the same places.

    A gradient is still called after its input, as the contract has it.
    """

    def called(name: str) -> str:
        own = name not in spec.arrays and name.startswith("d") and name[1:] in spec.arrays
        return f"dother_{name[1:]}" if own else f"other_{name}"

    def other(form: Signature) -> Signature:
        text = re.sub(r"(\w+)\[", lambda found: f"{called(found[1])}[", form.text)
        return parse(text, sorted(form.derived))

    forms = tuple(map(other, spec.signatures))
    roles = {called(name): role for name, role in spec.roles.items()}
    return replace(spec, signatures=forms, roles=roles)


@pytest.mark.parametrize("name", ANYHOW)
def test_kernels_are_found_whatever_arrays_are_called(name: str) -> None:
    spec = registry[name].spec
    every = (plannable.problems(one, "float32") for one in (spec, renamed(spec)))
    # Every layout is met, and every form, at one size or another.
    for (problem, out), (other, _) in islice(zip(*every, strict=True), 0, None, 7):
        assert other.given[0].name != problem.given[0].name
        want, got = (plannable.steps(plannable.call(p, out)) for p in (problem, other))
        assert got == want


@pytest.mark.full
@pytest.mark.slow("kernels of every op are planned")
def test_allowances_are_for_kernels_that_exist() -> None:
    assert all(reason for _, reason in ALLOWED.values())
    left = set(ALLOWED)
    # In few layouts nearly all are met, and the others by elementwise ops.
    ops = [(name, op) for name, op in registry.items() if op.spec.kernel]
    ops.sort(key=lambda item: item[1].spec.kernel.schedule != "elementwise")
    for every, (name, op) in product((False, True), ops):
        for dtype in plannable.dtypes(op.spec) if left else ():
            names = [entry.symbol for entry in plannable.entries(name, dtype, every)]
            left -= {part for part in left if any(part in symbol for symbol in names)}
    assert not left


def test_weights_of_classes_are_read_in_vectors() -> None:
    x = plannable.phantom((4096, 512), "dense", "bfloat16")
    weight = np.broadcast_to(plannable.phantom((512,), "dense", "bfloat16"), x.shape)
    spec = registry["binary_cross_entropy"].spec
    for reduction in ("mean", "none"):
        problem = check.problem(spec, [x, x, weight], {"reduction": reduction}, DEFAULT)
        first, *_ = plannable.steps(plannable.call(problem)).kernels
        assert "_rows_v8_" in first.entry.symbol


@pytest.mark.parametrize(("n", "prefetches"), [(1 << 20, False), (1 << 27, True)])
def test_blocks_ask_ahead_past_the_caches_only(n: int, prefetches: bool) -> None:
    x = plannable.phantom((n,), "dense", "float32")
    problem = check.problem(registry["lerp_backward"].spec, [x], {"weight": 0.3}, DEFAULT)
    (step,) = plannable.steps(plannable.call(problem)).kernels
    # Behind the addresses of an input and two outputs, and the weight.
    items, _, ahead, _ = struct.unpack_from("<4i", step.arguments, 32)
    assert items == n // 4
    assert (ahead < items) == prefetches


@pytest.mark.parametrize("shape", [(2106161, 1025, 8), (3 << 30, 1)])
def test_a_diagonal_is_found_for_as_many_rows_as_are_counted(shape: tuple[int, ...]) -> None:
    spec = registry["softmax"].spec
    x = plannable.phantom(shape, "dense", "bfloat16")
    for causal in (False, True):
        problem = check.problem(spec, [x, None], {"causal": causal}, DEFAULT)
        if causal:
            with pytest.raises(Refusal, match="at most 2143289344 rows beside a diagonal, not"):
                plannable.steps(plannable.call(problem))
        else:
            plannable.steps(plannable.call(problem))


@pytest.mark.parametrize("arch", lanes.cases(EVERY_ARCH, lanes.thinned("sm_90".__eq__)))
@pytest.mark.parametrize(
    ("op", "form", "words"),
    [
        # Four elements with a counter each; four vectors; one vector, and one for the tail.
        ("softmax_dropout", "lanes_c0_steps", 4),
        ("softmax_dropout", "lanes_c0_vectors", 4),
        ("dropout", "flat_v4_d1_i32", 2),
    ],
)
def test_the_assembler_leaves_no_element_without_its_word(
    op: str, form: str, words: int, arch: str
) -> None:
    """It dropped half of the words where the cutoff of a mask of rows was found once."""
    (entry,) = (
        e for e in plannable.compiled(op, "float32", arch) if e.symbol == f"{op}_f32_{form}"
    )
    # A word takes ten rounds of two products.
    for factor in (0xD2511F53, 0xCD9E8D57):
        found = compiler.compiled(entry, arch).count(factor.to_bytes(4, "little"))
        # A product of the first round may be the same for several elements, or for all threads.
        assert 9 * words < found <= 10 * words
