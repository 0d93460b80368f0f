"""CuPy without a GPU: its arrays lie in memory of the host, and what is launched is noted."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import stub_device
import torch

import baracuda as bc
from baracuda import backends
from baracuda.backends import cuda
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.libraries import Facts, library, library_of

cupy = pytest.importorskip("cupy", reason="needs pip install 'baracuda[cupy]'")


def memory_of(x: np.ndarray[Any, Any], device: int = 0) -> Any:
    """CuPy's pointer to the memory of `x`, as if it were on a device."""
    memory = cupy.cuda.UnownedMemory(x.ctypes.data, max(x.nbytes, 1), x, device)
    return cupy.cuda.MemoryPointer(memory, 0)


def on_device(x: np.ndarray[Any, Any], device: int = 0) -> Any:
    return cupy.ndarray(x.shape, x.dtype, memory_of(x, device), x.strides)


def aligned(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Zeros at an address that 64 divides."""
    kind = np.dtype(dtype)
    room = np.zeros(int(np.prod(shape)) * kind.itemsize + 64, np.uint8)
    first = -room.ctypes.data % 64
    return room[first : first + int(np.prod(shape)) * kind.itemsize].view(kind).reshape(shape)


@pytest.fixture(autouse=True)
def host_memory() -> Iterator[None]:
    """What CuPy allocates comes from the host."""
    before = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(lambda size: memory_of(aligned(max(size, 1), dtype=np.uint8)))
    yield
    cupy.cuda.set_allocator(before)


# Facts.


def test_facts_have_the_names_that_torch_has_for_them() -> None:
    host = aligned(4, 8)
    x, adapter = on_device(host), library("cupy")
    assert library_of(x) is adapter
    assert adapter.describe(x) == Facts("float32", (4, 8), (8, 1), "cuda:0", 16)
    assert adapter.describe(x.T) == Facts("float32", (8, 4), (1, 8), "cuda:0", 16)
    assert adapter.describe(x[::-1, 1::2]) == Facts("float32", (4, 4), (-8, 2), "cuda:0", 4)
    assert adapter.describe(on_device(host, 3)).device == "cuda:3"
    kind = adapter.dtype("bfloat16")
    assert adapter.describe(on_device(aligned(3, dtype=kind))).dtype == "bfloat16"
    assert adapter.memory(x[1:]) == (host.ctypes.data + 32, (32, 4))
    empty = on_device(aligned(0, 8))
    assert adapter.describe(empty).alignment == adapter.facts(empty)[-1]


def test_problems_are_those_of_torch() -> None:
    dy, x = aligned(4, 4), aligned(4, 8)
    spec = registry["swiglu_backward"].spec
    ours = check.problem(spec, [on_device(dy), on_device(x)], {}, DEFAULT)
    theirs = check.problem(spec, [torch.from_numpy(dy), torch.from_numpy(x)], {}, DEFAULT)
    theirs = replace(theirs, device="cuda:0", library=ours.library)
    assert ours.key == theirs.key


def test_every_difference_is_another_alias() -> None:
    x = on_device(aligned(4, 8))
    others = [
        x, x[:2], x.T, x[::-1], x.reshape(-1)[1:], on_device(aligned(33))[1:].reshape(4, 8),
        on_device(aligned(4, 8, dtype=np.float64)),
        on_device(aligned(4, 8), 1),
    ]  # fmt: skip
    assert len({library("cupy").facts(y) for y in others}) == len(others)


def test_what_lies_across_elements_is_refused() -> None:
    room = on_device(aligned(64, dtype=np.uint8))
    astray = room[2:34].view(np.float32)
    with pytest.raises(
        TypeError, match=r"^swiglu: x: expected elements at multiples of their 4 by"
    ):
        bc.swiglu(astray)
    apart = cupy.ndarray((2, 4), np.float32, room.data, (18, 4))
    with pytest.raises(TypeError, match=r"got address \d+ and strides \(18, 4\)"):
        bc.swiglu(apart)
    # Of one row there is no other to be astray.
    assert library("cupy").describe(apart[:1]).shape == (1, 4)


def test_libraries_and_devices_are_not_mixed() -> None:
    host = aligned(4, 8)
    x = on_device(host)
    with pytest.raises(TypeError, match=r"lerp: b: expected device cuda:0 \(as a\), got cuda:1"):
        bc.lerp(x, on_device(host, 1), weight=0.5)
    with pytest.raises(TypeError, match=r"lerp: b: .*library cupy \(as a\), got numpy"):
        bc.lerp(x, host, weight=0.5)


def test_a_matcher_takes_its_own_kind_alone() -> None:
    x, y = on_device(aligned(4, 8)), on_device(aligned(4, 8))
    fits = library_of(x).matcher([x])
    assert fits([y])
    wide = on_device(aligned(4, 8, dtype=np.float64))
    turned = on_device(aligned(8, 4)).T
    others = (turned, y.T, y[:3], y[:, ::2], on_device(aligned(4, 8), 1), wide, aligned(4, 8), None)
    for other in (*others, torch.ones(4, 8)):
        assert not fits([other])
    assert not fits([x, x])
    fits = library("cupy").matcher([x, None])
    assert fits([y, None])
    assert not fits([y, y])


def test_new_arrays_lie_as_asked() -> None:
    from baracuda.backends.cuda.cupy import empty as for_kernels
    from baracuda.libraries.cupy import empty

    for strides in ((3, 1), (1, 2)):
        y = empty((2, 3), strides, np.dtype(np.float32))
        assert y.strides == tuple(4 * s for s in strides)
        assert y.data.mem.size == 24
    y = for_kernels((5,), (1,), "bfloat16", 0)
    assert (y.dtype.name, y.shape) == ("bfloat16", (5,))
    x = on_device(aligned(2, 3))
    assert library("cupy").conform(x, None) is x
    assert library("cupy").conform(x.T, (1, 3)).data.ptr == x.data.ptr


# The launch.


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int]]]:
    """Of each launch the stream, and the addresses that the kernel was given."""
    stub_device.install(monkeypatch)
    from baracuda.backends.cuda import cupy as seam
    from baracuda.backends.cuda import fast_call, launch

    notes: list[tuple[int, list[int]]] = []

    def note(function: Any, *rest: Any) -> tuple[int]:
        *_, stream, pointer, _ = rest
        arguments = ctypes.c_void_p.from_address(pointer).value
        notes.append((int(stream), list((ctypes.c_uint64 * 3).from_address(arguments))))
        return (0,)

    monkeypatch.setattr(seam, "current_device", lambda: 0)
    monkeypatch.setattr(seam, "current_stream", lambda ordinal: 7)
    monkeypatch.setattr(cuda, "_arrays", lambda name: seam)
    for module in (launch, fast_call):
        monkeypatch.setattr(module, "launch_kernel", note)
    bc.plan_cache.clear()
    yield notes
    bc.plan_cache.clear()


def test_kernels_get_the_addresses_and_the_stream(launched: list[Any]) -> None:
    x = on_device(aligned(4, 8))
    plan = bc.glu.plan(x)
    assert plan.sku.backend == "cuda"
    out = cupy.ndarray((4, 4), np.float32)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: bc.glu(x), lambda: plan(x), lambda: plan(x, out=out),
    )  # fmt: skip
    for call in calls:
        launched.clear()
        y = call()
        assert type(y) is cupy.ndarray
        assert launched == [(7, [x.data.ptr, x.data.ptr + 16, y.data.ptr])]
    assert y is out
    assert bc.glu(x.T, axis=0).strides == (4, 16)


@pytest.mark.parametrize("capturing", [False, True])
def test_workspaces_of_a_graph_are_memory_of_it(
    capturing: bool, launched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def malloc(size: int) -> Any:
        asked.append(size)
        return memory_of(aligned(size, dtype=np.uint8))

    monkeypatch.setattr(cupy.cuda, "malloc_async", malloc)
    stream = SimpleNamespace(ptr=7, is_capturing=lambda: capturing)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda ordinal: stream)
    logits, target = on_device(aligned(64, 128)), on_device(aligned(64, dtype=np.int64))
    plan = bc.cross_entropy.plan(logits, target)
    assert plan(logits, target).dtype == np.float32
    assert len(launched) > 1
    # One for all of them.
    assert len(asked) == capturing
    assert not capturing or asked[0] >= plan.workspace_size > 0


def test_a_view_off_the_widest_access_has_a_plan_of_its_own(launched: list[Any]) -> None:
    room = on_device(aligned(33))
    x, off = room[:32].reshape(4, 8), room[1:].reshape(4, 8)
    plan = bc.glu.plan(x)
    assert "_v4_" in plan.sku.kernel
    plan(off)
    bc.glu(off)
    assert [words[0] for _, words in launched] == [off.data.ptr] * 2
    assert "_v1_" in bc.glu.plan(off).sku.kernel


def test_a_record_of_torch_is_one_of_cupy(launched: list[Any]) -> None:
    x = aligned(4, 8)
    theirs = bc.glu.plan(torch.from_numpy(x)).sku
    plan = bc.glu.plan(on_device(x), sku=theirs)
    assert plan.sku == theirs
    assert plan.sku.backend == "cuda"


# The backend of CuPy's own functions.


def backend() -> Any:
    return backends.load("cupy")


def test_refusals() -> None:
    problem = stub_device.on_gpu("gather_backward", (2, 4), (2, 4), axis=0, src_shape=(4, 4))
    assert backend().refuses(problem) is None
    asked = replace(problem, choices=replace(problem.choices, deterministic=True))
    assert backend().refuses(asked) == "cupy.add.at on cuda:0 adds in no fixed order"
    watched = replace(problem, mode="autograd")
    assert backend().refuses(watched).startswith("autograd arrays need functions")
    with pytest.raises(NotImplementedError, match="cupy: takes arrays on NVIDIA devices, not on c"):
        bc.swiglu(torch.ones(2, 4), backend="cupy")
    with pytest.raises(NotImplementedError, match="cupy: takes arrays of cupy, torch, not of num"):
        bc.swiglu(np.ones((2, 4)), backend="cupy")


def test_bfloat16_needs_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = stub_device.on_gpu("glu", (2, 4))
    inputs, outputs = (
        tuple(x and x._replace(dtype="bfloat16") for x in some)
        for some in (problem.inputs, problem.outputs)
    )
    problem = replace(problem, inputs=inputs, outputs=outputs)
    assert backend().refuses(problem) is None
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    want = "bfloat16 needs ml-dtypes: pip install 'baracuda[bf16]'"
    assert backend().refuses(problem) == want


def test_what_was_found_is_raised_when_it_is_there() -> None:
    from baracuda.calls import ranges

    problem = stub_device.on_gpu("gather", (2, 4), (2, 3), axis=1)
    waited: list[int] = []

    def look(number: int, done: bool, *found: int) -> Any:
        ended.append(done)
        return ranges.Look(
            lambda: ended[number], lambda: waited.append(number), lambda: found, problem, "index",
            (2, 3),
        )  # fmt: skip

    ended: list[bool] = []
    looks = look(0, True, 0, 0, 3), look(1, True, 1, 4, 9), look(2, False, 1, 0, -1)
    ranges.begun.extend(looks)
    with pytest.raises(IndexError, match=r"gather: index: .* < 4, got 9 at position \(1, 1\)"):
        ranges.raise_found()
    # What is still looked for is left alone; who asks for it waits.
    ranges.raise_found()
    assert [len(ranges.begun), waited] == [1, []]
    ended[2] = True
    with pytest.raises(IndexError, match=r"got -1 at position \(0, 0\)"):
        bc.check_errors()
    assert waited == [2]
    assert not ranges.begun


def test_what_cannot_be_loaded_claims_nothing() -> None:
    backends.register("absent", backends.Entry("baracuda.backends.absent", None))
    try:
        assert "absent" not in backends.claims(registry["glu"].spec, "numpy")
    finally:
        backends.unregister("absent")


def test_a_watched_tensor_is_shown_without_its_history() -> None:
    x = torch.ones(2, requires_grad=True)
    shared = library("torch").shared(x)
    assert not shared.requires_grad
    assert shared.data_ptr() == x.data_ptr()
