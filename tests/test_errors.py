"""Bad input: which error, with which text, whatever the cache holds, and nothing half-written."""

import contextlib
import dataclasses
import json
import logging
import math
import re
import warnings

import array_api_strict as strict
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import baracuda as bc

NAMESPACES = {"numpy": np, "torch": torch, "jax": jnp, "array_api_strict": strict}
BFLOAT16 = np.ones(3, ml_dtypes.bfloat16)
FLOATING = "a floating dtype (float32, float64, float16, bfloat16)"
POSITIONS = (
    "; positions are [S], or have one axis for each of x but the last: "
    "one set per batch entry is positions[:, None] for x of [B, H, S, D]"
)


class Make:
    """Arrays of one library: ``a(2, 8)`` holds ones, ``a.ints(2, 3)`` zeros of int32."""

    def __init__(self, library):
        self.name, self.xp = library, NAMESPACES[library]
        # JAX has no float64 by default, the standard no float16.
        self.second = "float16" if library == "jax" else "float64"

    def __call__(self, *shape, dtype="float32"):
        return self.xp.ones(shape, dtype=getattr(self.xp, dtype))

    def ints(self, *shape, value=0, dtype="int32"):
        return self.xp.full(shape, value, dtype=getattr(self.xp, dtype))

    def other(self, *shape):
        """An array of another library."""
        return np.ones(shape, np.float32) if self.name != "numpy" else torch.ones(shape)


@pytest.fixture(params=NAMESPACES)
def a(request):
    return Make(request.param)


@pytest.fixture(autouse=True)
def _fresh_cache():
    bc.plan_cache.clear()


@contextlib.contextmanager
def raises(kind, text="", pattern=""):
    """The built-in `kind`, as one of ours, with exactly this text, or text that has a pattern."""
    with pytest.raises(kind, match=pattern or f"^{re.escape(text)}$") as caught:
        yield caught
    assert isinstance(caught.value, bc.BaracudaError)


GOOD = {
    "swiglu": lambda a: bc.swiglu(a(2, 8)),
    "swiglu_backward": lambda a: bc.swiglu_backward(a(2, 4), a(2, 8)),
    "geglu": lambda a: bc.geglu(a(2, 8)),
    "lerp": lambda a: bc.lerp(a(2, 8), a(2, 8), weight=0.5),
    "lerp_backward": lambda a: bc.lerp_backward(a(2, 8), weight=0.5),
    "rope": lambda a: bc.rope(a(2, 8), a.ints(2)),
    "rope_backward": lambda a: bc.rope_backward(a(2, 8), a.ints(2)),
    "lp_pool1d": lambda a: bc.lp_pool1d(a(2, 8), norm_type=2, kernel_size=2),
    "lp_pool2d": lambda a: bc.lp_pool2d(a(2, 8), norm_type=2, kernel_size=2),
    "lp_pool1d_backward": lambda a: bc.lp_pool1d_backward(
        a(2, 4), a(2, 8), a(2, 4), norm_type=2, kernel_size=2
    ),
    "gather": lambda a: bc.gather(a(2, 8), a.ints(2, 3), axis=1),
    "gather_backward": lambda a: bc.gather_backward(
        a(2, 3), a.ints(2, 3), axis=1, src_shape=(2, 8)
    ),
}


def pool(a, size=8, **options):
    return bc.lp_pool1d(a(2, size), **{"norm_type": 2, "kernel_size": 2, **options})


def put(a, **options):
    given = {"axis": 1, "src_shape": (2, 8), **options}
    return bc.gather_backward(a(2, 3), a.ints(2, 3), **given)


BAD = {
    # no array, or one too many
    "no array": (
        lambda a: bc.swiglu(),
        TypeError, "swiglu: missing a required argument: 'x'",
    ),
    "None": (
        lambda a: bc.swiglu(None),
        TypeError, "swiglu: x: expected an array, got builtins.NoneType",
    ),
    "list": (
        lambda a: bc.swiglu([1.0, 2.0]),
        TypeError, "swiglu: x: expected an array, got builtins.list",
    ),
    "number beside an array": (
        lambda a: bc.swiglu(a(2, 8), 3.0),
        TypeError,
        "swiglu: gate: expected an array, got 3.0; arrays are positional: swiglu(x, gate); "
        "options are keywords: axis=, gate_first=",
    ),
    "third array": (
        lambda a: bc.swiglu(a(2, 8), a(2, 8), a(2, 8)),
        TypeError,
        "swiglu: too many positional arguments; arrays are positional: swiglu(x, gate); "
        "options are keywords: axis=, gate_first=",
    ),
    "unknown keyword": (
        lambda a: bc.swiglu(a(2, 8), axes=1),
        TypeError, "swiglu: got an unexpected keyword argument 'axes'; write axis=",
    ),
    "out= of a function": (
        lambda a: bc.swiglu(a(2, 8), out=a(2, 4)),
        TypeError,
        "swiglu: got an unexpected keyword argument 'out'; write swiglu.plan(x)(x, out=...)",
    ),
    "required option": (
        lambda a: bc.gather(a(2, 8), a.ints(2, 3)),
        TypeError, "gather: missing a required argument: 'axis'",
    ),
    "required scalar": (
        lambda a: bc.lerp(a(2), a(2)),
        TypeError, "lerp: missing a required argument: 'weight'",
    ),
    # dtypes
    "integer data": (
        lambda a: bc.swiglu(a.ints(2, 8)),
        TypeError, f"swiglu: x: expected {FLOATING}, got int32",
    ),
    "boolean data": (
        lambda a: bc.lp_pool1d(a(2, 8, dtype="bool"), norm_type=2, kernel_size=2),
        TypeError, f"lp_pool1d: x: expected {FLOATING}, got bool",
    ),
    "complex data": (
        lambda a: bc.rope(a(2, 8, dtype="complex64")),
        TypeError, f"rope: x: expected {FLOATING}, got complex64",
    ),
    "integer gradient": (
        lambda a: bc.gather_backward(
            a.ints(2, 3), a.ints(2, 3), axis=1, src_shape=(2, 8)
        ),
        TypeError, f"gather_backward: dout: expected {FLOATING}, got int32",
    ),
    "two floating dtypes": (
        lambda a: bc.lerp(a(2, 8), a(2, 8, dtype=a.second), weight=0.5),
        TypeError, "lerp: b: expected float32 (as a), got <second>",
    ),
    "floating index": (
        lambda a: bc.gather(a(2, 8), a(2, 3), axis=1),
        TypeError, "gather: index: expected int32 or int64, got float32",
    ),
    "boolean index": (
        lambda a: bc.gather(a(2, 8), a(2, 3, dtype="bool"), axis=1),
        TypeError, "gather: index: expected int32 or int64, got bool",
    ),
    "narrow index": (
        lambda a: bc.gather(a(2, 8), a.ints(2, 3, dtype="uint8"), axis=1),
        TypeError, "gather: index: expected int32 or int64, got uint8",
    ),
    "floating positions": (
        lambda a: bc.rope(a(2, 8), a(2)),
        TypeError, "rope: positions: expected int32 or int64, got float32",
    ),
    # ranks, shapes, axes
    "rank 0 has no halves": (
        lambda a: bc.swiglu(a()),
        ValueError, "swiglu: x: expected at least 1 axis, got shape () [x=[*b 2n *c]]",
    ),
    "rank 1 rope": (
        lambda a: bc.rope(a(8)),
        ValueError, "rope: x: expected at least 2 axes, got shape (8,) [x=[*b s *h d]]",
    ),
    "rank 1 lp_pool2d": (
        lambda a: bc.lp_pool2d(a(8), norm_type=2, kernel_size=1),
        ValueError, "lp_pool2d: x: expected at least 2 axes, got shape (8,) [x=[*b h w]]",
    ),
    "rank of the gate": (
        lambda a: bc.swiglu(a(2, 8), a(8)),
        ValueError,
        "swiglu: gate: expected 2 axes beside x of shape (2, 8) with axis=1, got shape (8,) "
        "[gate=[*b n *c], b=(2,), n=8, c=()]",
    ),
    "rank of the index": (
        lambda a: bc.gather(a(2, 8), a.ints(3), axis=1),
        ValueError,
        "gather: index: expected 2 axes beside src of shape (2, 8) with axis=1, got shape (3,) "
        "[index=[*i<=b k *j<=c], b=(2,), n=8, c=()]",
    ),
    "shape of the gate": (
        lambda a: bc.swiglu(a(2, 8), a(1, 8)),
        ValueError,
        "swiglu: gate: expected 2 along axis 0 (as x of shape (2, 8) with axis=1), "
        "got shape (1, 8) [gate=[*b n *c], b=(2,), n=8, c=()]",
    ),
    "shape of the gradient": (
        lambda a: bc.swiglu_backward(a(2, 3), a(2, 8)),
        ValueError,
        "swiglu_backward: dy: expected 4 along axis 1 (half of x of shape (2, 8) with axis=1), "
        "got shape (2, 3) [dy=[*b n *c], b=(2,), n=4, c=()]",
    ),
    "shape of b": (
        lambda a: bc.lerp(a(2, 8), a(1, 8), weight=0.5),
        ValueError,
        "lerp: b: expected 2 along axis 0 (as a of shape (2, 8)), got shape (1, 8) "
        "[b=[*s], s=(2, 8)]",
    ),
    "odd extent": (
        lambda a: bc.swiglu(a(2, 7)),
        ValueError,
        "swiglu: x: expected an even extent along axis 1, got shape (2, 7) [x=[*b 2n *c], b=(2,)]",
    ),
    "odd extent off the end": (
        lambda a: bc.glu(a(2, 3, 8), axis=-2),
        ValueError,
        "glu: x: expected an even extent along axis 1, got shape (2, 3, 8) [x=[*b 2n *c], b=(2,)]",
    ),
    "no such axis": (
        lambda a: bc.swiglu(a(2, 8), axis=2),
        ValueError, "swiglu: axis: expected -2 <= axis < 2 for x of rank 2, got 2",
    ),
    "no such negative axis": (
        lambda a: bc.gather(a(2, 8), a.ints(2, 3), axis=-3),
        ValueError, "gather: axis: expected -2 <= axis < 2 for src of rank 2, got -3",
    ),
    # options
    "boolean axis": (
        lambda a: bc.swiglu(a(2, 8), axis=True),
        TypeError, "swiglu: axis: expected an integer, got True",
    ),
    "floating axis": (
        lambda a: bc.swiglu(a(2, 8), axis=1.0),
        TypeError, "swiglu: axis: expected an integer, got 1.0",
    ),
    "integer flag": (
        lambda a: bc.swiglu(a(2, 8), gate_first=1),
        TypeError, "swiglu: gate_first: expected True or False, got 1",
    ),
    "unknown approximation": (
        lambda a: bc.geglu(a(2, 8), approximate="erf"),
        ValueError, "geglu: approximate: expected one of 'none', 'tanh', got 'erf'",
    ),
    "unknown mode": (
        lambda a: bc.gather(a(2, 8), a.ints(2, 3), axis=1, mode="clip"),
        ValueError, "gather: mode: expected one of 'raise', 'drop', got 'clip'",
    ),
    "array for a mode": (
        lambda a: bc.gather(a(2, 8), a.ints(2, 3), axis=1, mode=a(2)),
        (TypeError, ValueError),
        re.compile(r"gather: mode: expected one of 'raise', 'drop', got [\s\S]*"),
    ),
    "weight beyond float64": (
        lambda a: bc.lerp(a(2), a(2), weight=10**400),
        (TypeError, ValueError), re.compile(r"lerp: weight: expected .*, got .*"),
    ),
    "text weight": (
        lambda a: bc.lerp(a(2), a(2), weight="a"),
        TypeError, "lerp: weight: expected a real number, got 'a'",
    ),
    "complex weight": (
        lambda a: bc.lerp_backward(a(2), weight=1j),
        TypeError, "lerp_backward: weight: expected a real number, got 1j",
    ),
    "no weight": (
        lambda a: bc.lerp(a(2), a(2), weight=None),
        TypeError, "lerp: weight: expected a real number, got None",
    ),
    # rope
    "odd rotary_dim": (
        lambda a: bc.rope(a(2, 8), rotary_dim=3),
        ValueError,
        "rope: rotary_dim: expected an even number from 0 to d = 8, got 3 "
        "[b=(), s=2, h=(), d=8]",
    ),
    "odd last axis": (
        lambda a: bc.rope(a(2, 7)),
        ValueError,
        "rope: rotary_dim: expected an even number from 0 to d = 7, got 7 "
        "[b=(), s=2, h=(), d=7]",
    ),
    "rotary_dim beyond d": (
        lambda a: bc.rope_backward(a(2, 8), rotary_dim=10),
        ValueError,
        "rope_backward: rotary_dim: expected an even number from 0 to d = 8, got 10 "
        "[b=(), s=2, h=(), d=8]",
    ),
    "base 0": (
        lambda a: bc.rope(a(2, 8), base=0),
        ValueError, "rope: base: expected a finite number > 0, got 0",
    ),
    "negative base": (
        lambda a: bc.rope(a(2, 8), base=-1.5),
        ValueError, "rope: base: expected a finite number > 0, got -1.5",
    ),
    "infinite base": (
        lambda a: bc.rope(a(2, 8), base=math.inf),
        ValueError, "rope: base: expected a finite number > 0, got inf",
    ),
    "NaN base": (
        lambda a: bc.rope(a(2, 8), base=math.nan),
        ValueError, "rope: base: expected a finite number > 0, got nan",
    ),
    "negative lambd": (
        lambda a: bc.softshrink(a(2, 8), lambd=-0.5),
        ValueError, "softshrink: lambd: expected a finite number >= 0, got -0.5",
    ),
    "alpha 0": (
        lambda a: bc.celu_backward(a(2, 8), a(2, 8), alpha=0),
        ValueError, "celu_backward: alpha: expected a finite number other than 0, got 0",
    ),
    "seq_axis is the last": (
        lambda a: bc.rope(a(2, 8), seq_axis=1),
        ValueError,
        "rope: seq_axis: expected 0 for x of shape (2, 8), got 1 [x=[*b s *h d]]",
    ),
    "length of positions": (
        lambda a: bc.rope(a(2, 8), a.ints(3)),
        ValueError,
        "rope: positions: expected 2 along axis 0 (as x of shape (2, 8) with seq_axis=0), "
        f"got shape (3,) [positions=[s], b=(), s=2, h=(), d=8]{POSITIONS}",
    ),
    "rank of positions": (
        lambda a: bc.rope(a(2, 3, 4, 8), a.ints(2, 4)),
        ValueError,
        "rope: positions: expected 3 axes beside x of shape (2, 3, 4, 8) with seq_axis=2, "
        f"got shape (2, 4) [positions=[*b? s? *h?], b=(2, 3), s=4, h=(), d=8]{POSITIONS}",
    ),
    "rank 0 positions": (
        lambda a: bc.rope(a(2, 8), a.ints()),
        ValueError,
        "rope: positions: expected 1 axis beside x of shape (2, 8) with seq_axis=0, "
        f"got shape () [positions=[s], b=(), s=2, h=(), d=8]{POSITIONS}",
    ),
    # lp_pool
    "norm_type 0": (
        lambda a: pool(a, norm_type=0),
        ValueError, "lp_pool1d: norm_type: expected a number > 0, at most 131072 or infinite, "
        "got 0",
    ),
    "negative norm_type": (
        lambda a: pool(a, norm_type=-math.inf),
        ValueError, "lp_pool1d: norm_type: expected a number > 0, at most 131072 or infinite, "
        "got -inf",
    ),
    "NaN norm_type": (
        lambda a: pool(a, norm_type=math.nan),
        ValueError, "lp_pool1d: norm_type: expected a number > 0, at most 131072 or infinite, "
        "got nan",
    ),
    "large kernel": (
        lambda a: pool(a, kernel_size=9),
        ValueError, "lp_pool1d: kernel_size: expected at most l = 8, got 9 [b=(2,), l=8]",
    ),
    "large kernel of one axis": (
        lambda a: bc.lp_pool2d(a(2, 8), norm_type=2, kernel_size=(3, 2)),
        ValueError, "lp_pool2d: kernel_size: expected at most h = 2, got 3 [b=(), h=2, w=8]",
    ),
    "kernel of an empty axis": (
        lambda a: pool(a, size=0, kernel_size=1),
        ValueError, "lp_pool1d: kernel_size: expected at most l = 0, got 1 [b=(2,), l=0]",
    ),
    "kernel of no cells": (
        lambda a: pool(a, kernel_size=0),
        ValueError, "lp_pool1d: kernel_size: expected sizes >= 1, got 0",
    ),
    "too many sizes": (
        lambda a: bc.lp_pool2d(a(2, 8), norm_type=2, kernel_size=(1, 2, 3)),
        ValueError, "lp_pool2d: kernel_size: expected 2 sizes, got (1, 2, 3)",
    ),
    "floating kernel": (
        lambda a: pool(a, kernel_size=2.0),
        TypeError, "lp_pool1d: kernel_size: expected an integer, got 2.0",
    ),
    "stride 0": (
        lambda a: pool(a, stride=0),
        ValueError, "lp_pool1d: stride: expected sizes >= 1, got 0",
    ),
    "negative stride": (
        lambda a: bc.lp_pool2d(a(2, 8), norm_type=2, kernel_size=2, stride=(1, -1)),
        ValueError, "lp_pool2d: stride: expected sizes >= 1, got (1, -1)",
    ),
    "pooled shape": (
        lambda a: bc.lp_pool1d_backward(a(2, 8), a(2, 8), a(2, 4), norm_type=2, kernel_size=2),
        ValueError,
        re.compile(
            r"lp_pool1d_backward: dy: expected 4 along axis 1 \(by norm_type=2.0, "
            r"kernel_size=\(2,\), stride=\(2,\), ceil_mode=False\), got shape \(2, 8\) "
            r"\[dy=\[\*b ol], b=.*, l=8, ol=4]"
        ),
    ),
    # gather
    "index larger off the axis": (
        lambda a: bc.gather(a(2, 8), a.ints(3, 3), axis=1),
        ValueError,
        "gather: index: expected at most 2 along axis 0 (as src of shape (2, 8) with axis=1), "
        "got shape (3, 3) [index=[*i<=b k *j<=c], b=(2,), n=8, c=()]",
    ),
    "index of another shape than the gradient": (
        lambda a: bc.gather_backward(a(2, 2), a.ints(2, 3), axis=1, src_shape=(2, 8)),
        ValueError,
        "gather_backward: index: expected 2 along axis 1 (as dout of shape (2, 2)), "
        "got shape (2, 3) [index=[*i k *j], b=(2,), n=8, c=(), i=(2,), k=2, j=()]",
    ),
    "src_shape smaller off the axis": (
        lambda a: put(a, src_shape=(1, 8)),
        ValueError,
        "gather_backward: dout: expected at most 1 along axis 0 (as src_shape=(1, 8) with axis=1), "
        "got shape (2, 3) [dout=[*i<=b k *j<=c], b=(1,), n=8, c=()]",
    ),
    "src_shape of another rank": (
        lambda a: put(a, src_shape=(2, 8, 1)),
        ValueError,
        "gather_backward: dout: expected 3 axes beside src_shape=(2, 8, 1) with axis=1, "
        "got shape (2, 3) [dout=[*i<=b k *j<=c], b=(2,), n=8, c=(1,)]",
    ),
    "src_shape without the axis": (
        lambda a: put(a, src_shape=(2,)),
        ValueError, "gather_backward: axis: expected -1 <= axis < 1 for src_shape of rank 1, got 1",
    ),
    "src_shape a number": (
        lambda a: put(a, src_shape=8),
        TypeError, "gather_backward: src_shape: expected a tuple of integers, got 8",
    ),
    "src_shape negative": (
        lambda a: put(a, src_shape=(2, -8)),
        ValueError, "gather_backward: src_shape: expected extents >= 0, got (2, -8)",
    ),
    "src_shape floating": (
        lambda a: put(a, src_shape=(2, 8.0)),
        TypeError, "gather_backward: src_shape: expected an integer, got 8.0",
    ),
    # dispatch
    "unknown backend": (
        lambda a: bc.swiglu(a(2, 8), backend="nope"),
        ValueError,
        re.compile(
            r"swiglu: backend: expected one of .*torch, numpy, .*array_api, got 'nope'; "
            "close to it: 'numpy'"
        ),
    ),
    "backend no text": (
        lambda a: bc.swiglu(a(2, 8), backend=3),
        TypeError, "swiglu: backend: expected the name of a backend or None, got 3",
    ),
    "deterministic a number": (
        lambda a: bc.swiglu(a(2, 8), deterministic=1),
        TypeError, "swiglu: deterministic: expected True, False or None, got 1",
    ),
    "workspace negative": (
        lambda a: bc.swiglu(a(2, 8), max_workspace_bytes=-1),
        ValueError, "swiglu: max_workspace_bytes: expected a size >= 0 of 64 bits, got -1",
    ),
    "workspace boolean": (
        lambda a: bc.swiglu(a(2, 8), max_workspace_bytes=True),
        TypeError, "swiglu: max_workspace_bytes: expected a number of bytes or None, got True",
    ),
    "workspace False": (
        lambda a: bc.swiglu(a(2, 8), max_workspace_bytes=False),
        TypeError, "swiglu: max_workspace_bytes: expected a number of bytes or None, got False",
    ),
    "autotune None": (
        lambda a: bc.swiglu(a(2, 8), autotune=None),
        TypeError, "swiglu: autotune: expected True or False, got None",
    ),
    "sku no record": (
        lambda a: bc.swiglu(a(2, 8), sku=1),
        TypeError, "swiglu: sku: expected a KernelSku, its JSON text or None, got 1",
    ),
    "sku of another op": (
        lambda a: bc.swiglu(a(2, 8), sku=bc.glu.plan(a(2, 8)).sku),
        ValueError, "swiglu: sku: expected one of op swiglu, got glu",
    ),
    "sku of another dtype": (
        lambda a: bc.swiglu(a(2, 8), sku=bc.swiglu.plan(a(2, 8, dtype=a.second)).sku),
        ValueError, "swiglu: sku: expected one of dtype float32, got <second>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_says_what_was_expected_and_what_came(a, case):
    call, kind, text = BAD[case]
    pattern = text.pattern if isinstance(text, re.Pattern) else re.escape(text)
    pattern = pattern.replace("<second>", a.second)
    good = GOOD.get(pattern.partition(":")[0].replace("\\", ""), GOOD["swiglu"])
    for prepare in (bc.plan_cache.clear, lambda: good(a), lambda: None):
        prepare()
        with raises(kind, pattern=f"^{pattern}$"):
            call(a)
    good(a)


def test_libraries_do_not_mix(a):
    other = "torch" if a.name == "numpy" else "numpy"
    text = f"swiglu: gate: expected an array of library {a.name} (as x), got {other}"
    with raises(TypeError, text):
        bc.swiglu(a(2, 8), a.other(2, 8))
    bc.swiglu(a(2, 8), a(2, 8))
    with raises(TypeError, text):
        bc.swiglu(a(2, 8), a.other(2, 8))
    with raises(
        TypeError, f"gather: index: expected an array of library {a.name} (as src), got {other}"
    ):
        bc.gather(a(2, 8), NAMESPACES[other].zeros((2, 3), dtype=NAMESPACES[other].int32), axis=1)


@pytest.mark.parametrize(
    ("on_first", "on_second", "text"),
    [
        (torch.ones(8), torch.ones(8, device="meta"), "cpu (as x), got meta"),
        (torch.ones(8, device="meta"), torch.ones(8), "meta (as x), got cpu"),
        (
            strict.ones(8),
            strict.ones(8, device=strict.Device("device1")),
            f"{strict.Device('CPU_DEVICE')} (as x), got {strict.Device('device1')}",
        ),
    ],
)
def test_devices_do_not_mix(on_first, on_second, text):
    for _ in range(2):
        with raises(TypeError, f"swiglu: gate: expected device {text}"):
            bc.swiglu(on_first, on_second)
        bc.swiglu(on_first, on_first)


@pytest.mark.parametrize(
    "x", [np.ones((2, 8), ">f4"), np.ones((2, 8), np.longdouble), np.array(["a", "b"]),
          np.array([object()]), np.zeros((2, 8), [("re", "f4"), ("im", "f4")]),
          np.zeros(2, "M8[s]")], ids=lambda x: str(x.dtype),
)  # fmt: skip
def test_dtypes_beyond_the_array_api_are_named(x):
    with raises(TypeError, f"swiglu: x: expected {FLOATING}, got {str(x.dtype).split('.')[-1]}"):
        bc.swiglu(x)
    with pytest.raises(TypeError, match=r"^gather: src: expected a dtype of the array API \("):
        bc.gather(x, np.zeros(x.shape, np.int32), axis=0)


def test_sparse_and_nested_tensors_are_no_dense_ones():
    with raises(TypeError, "swiglu: x: expected a dense tensor, got layout torch.sparse_coo"):
        bc.swiglu(torch.ones(2, 8).to_sparse())
    with warnings.catch_warnings(action="ignore"):
        nested = torch.nested.nested_tensor([torch.ones(4), torch.ones(6)])
    with raises(TypeError, pattern="^swiglu: x: expected a dense tensor, got "):
        bc.swiglu(nested)


# Python takes True for 1 and 1.0 for 1 as a key; an option does not.
TWINS = {
    "axis": lambda v: bc.glu(np.ones((2, 8)), axis=v),
    "kernel_size": lambda v: pool(Make("numpy"), kernel_size=v),
    "stride": lambda v: pool(Make("numpy"), stride=v),
    "rotary_dim": lambda v: bc.rope(np.ones((2, 8)), rotary_dim=v),
    "seq_axis": lambda v: bc.rope(np.ones((2, 2, 8)), seq_axis=v),
    "src_shape": lambda v: put(Make("numpy"), src_shape=v),
    "gate_first": lambda v: bc.glu(np.ones((2, 8)), gate_first=v),
    "interleaved": lambda v: bc.rope(np.ones((2, 8)), interleaved=v),
    "ceil_mode": lambda v: pool(Make("numpy"), ceil_mode=v),
    "norm_type": lambda v: pool(Make("numpy"), norm_type=v),
    "base": lambda v: bc.rope(np.ones((2, 8)), base=v),
    "weight": lambda v: bc.lerp(np.ones(2), np.ones(2), weight=v),
    "deterministic": lambda v: bc.glu(np.ones((2, 8)), deterministic=v),
    "autotune": lambda v: bc.glu(np.ones((2, 8)), autotune=v),
}


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        ("axis", 1, True), ("axis", 1, 1.0), ("axis", 0, False),
        ("kernel_size", 2, 2.0), ("kernel_size", 1, True),
        ("kernel_size", (2,), (2.0,)), ("kernel_size", (1,), (True,)),
        ("stride", 2, 2.0), ("stride", (2,), (2.0,)), ("stride", 1, True),
        ("rotary_dim", 4, 4.0), ("seq_axis", 1, True), ("seq_axis", 0, 0.0),
        ("src_shape", (2, 8), (2, 8.0)), ("src_shape", (2, 8), (2.0, 8)),
        ("gate_first", True, 1), ("gate_first", False, 0), ("interleaved", True, 1.0),
        ("ceil_mode", True, 1), ("norm_type", 1, True), ("base", 1, True), ("weight", 1, True),
        ("deterministic", True, 1), ("deterministic", False, 0.0), ("autotune", False, 0),
    ],
)  # fmt: skip
def test_an_equal_value_of_the_wrong_type_fails_after_the_right_one(option, good, bad):
    call = TWINS[option]
    for prepare in (lambda: None, lambda: call(good), lambda: call(good)):
        prepare()
        with raises(TypeError, pattern=rf"\w+: {option}: expected .+, got "):
            call(bad)


def test_integers_of_numpy_are_integers_and_its_reals_are_reals():
    x = np.arange(16.0).reshape(2, 8)
    assert np.array_equal(bc.glu(x, axis=np.int64(1)), bc.glu(x, axis=1))
    plan = bc.rope.plan(x, base=np.float32(100.0))
    assert plan is bc.rope.plan(x, base=100.0)
    lerp = bc.lerp(x, x + 1, weight=np.float64(0.25))
    assert np.array_equal(lerp, bc.lerp(x, x + 1, weight=0.25))


# index out of range


def index(a, rows, dtype="int32"):
    return a.xp.asarray(rows, dtype=getattr(a.xp, dtype))


@pytest.mark.parametrize("bad", [8, -1, 2**31 - 1, -(2**31)])
def test_an_index_out_of_range_is_named_with_its_position(a, bad):
    rows = [[0, 1, 7], [2, bad, bad + 1 if bad < 0 else bad - 1]]
    text = f"index: expected 0 <= i < 8, got {bad} at position (1, 1)"
    for _ in range(2):
        with raises(IndexError, f"gather: {text}"):
            bc.gather(a(2, 8), index(a, rows), axis=1)
        with raises(IndexError, f"gather_backward: {text}"):
            bc.gather_backward(a(2, 3), index(a, rows), axis=1, src_shape=(2, 8))
        GOOD["gather"](a)
    bc.gather(a(2, 8), index(a, rows), axis=1, mode="drop")
    bc.gather_backward(a(2, 3), index(a, rows), axis=1, src_shape=(2, 8), mode="drop")


def test_the_first_bad_index_is_the_first_in_c_order_whatever_the_strides():
    rows = np.asarray([[0, 9], [7, 0], [-3, 1]])
    text = "gather: index: expected 0 <= i < 7, got 9 at position (0, 1)"
    for given in (rows, np.asfortranarray(rows), rows[::-1].copy()[::-1]):
        with raises(IndexError, text):
            bc.gather(np.ones((3, 7)), given, axis=1)
    one_for_all = np.broadcast_to(np.asarray([0, 5, 7]), (4, 3))
    with raises(IndexError, "gather: index: expected 0 <= i < 7, got 7 at position (0, 2)"):
        bc.gather(np.ones((4, 7)), one_for_all, axis=1)


@pytest.mark.parametrize("bad", [2**40, -(2**40), 2**32])
def test_an_int64_index_is_not_truncated(bad):
    for xp in (np, torch):
        at = xp.asarray([0, bad])
        with raises(IndexError, f"gather: index: expected 0 <= i < 3, got {bad} at position (1,)"):
            bc.gather(xp.ones(3), at, axis=0)
        assert bc.gather(xp.ones(3), at, axis=0, mode="drop").tolist() == [1, 0]
        put_back = bc.gather_backward(xp.ones(2), at, axis=0, src_shape=(3,), mode="drop")
        assert put_back.tolist() == [1, 0, 0]


def test_an_empty_axis_has_no_valid_index(a):
    with raises(
        IndexError, "gather: index: expected no entries, as the axis that they point along has "
        "extent 0, got shape (2, 3)",
    ):  # fmt: skip
        bc.gather(a(2, 0), a.ints(2, 3), axis=1)
    dropped = bc.gather(a(2, 0), a.ints(2, 3), axis=1, mode="drop")
    assert dropped.shape == (2, 3)
    assert not a.xp.any(dropped)


# backends that refuse, choices that cannot be made again


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: bc.swiglu(torch.ones(2, 8), backend="numpy"),
         "numpy: takes arrays of numpy, not of torch"),
        (lambda: bc.swiglu(jnp.ones((2, 8)), backend="torch"),
         "torch: takes arrays of torch, numpy, not of jax"),
        (lambda: bc.swiglu(np.ones((2, 8))[:, ::-1], backend="torch"),
         "torch: x: torch has no negative strides"),
        (lambda: bc.lerp(BFLOAT16, BFLOAT16, weight=0.5, backend="torch"),
         "torch: torch.from_numpy has no bfloat16"),
    ],
)  # fmt: skip
def test_a_forced_backend_refuses_with_its_reason_and_the_others(call, reason):
    for _ in range(2):
        with raises(NotImplementedError, pattern=re.escape(reason)) as caught:
            call()
        forced = reason.partition(":")[0]
        assert f"backend {forced!r} refuses: " in str(caught.value)
        for other in {"torch", "numpy", "array_api"} - {forced}:
            assert f"; {other}: " in str(caught.value)
    with bc.options(backend="array_api"):
        bc.swiglu(np.ones((2, 8)))


@pytest.mark.parametrize("broken", ["unaligned", "read-only"])
def test_torch_refuses_numpy_arrays_that_it_would_copy_or_misread(broken):
    x = np.ones((2, 8), np.float32)
    if broken == "unaligned":
        x = np.frombuffer(bytearray(1 + x.nbytes), np.uint8)[1:].view(np.float32).reshape(2, 8)
    else:
        x.flags.writeable = False
    with raises(
        NotImplementedError,
        f"swiglu: backend 'torch' refuses: takes no {broken} NumPy array; give x.copy()",
    ):
        bc.swiglu(x, backend="torch")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"arch": "sm_90"}, "swiglu: sku: expected arch sm_90, got "),
        ({"version": "0"}, "swiglu: sku: expected one of version "),
        ({"layout": "strided"}, "swiglu: sku: expected one of layout contiguous, got strided"),
        ({"variant": "vec8"}, "swiglu: sku: expected variant vec8, got "),
        ({"kernel": "k", "arch": "sm_90"}, "swiglu: sku: expected arch sm_90, kernel k, got "),
        ({"backend": "other"}, "swiglu: "),
    ],
)
def test_a_choice_that_cannot_be_made_again_says_why(change, text):
    x = np.ones((2, 8), np.float32)
    sku = bc.swiglu.plan(x).sku
    changed = dataclasses.replace(sku, **change)
    for record in (changed, changed.to_json()):
        with raises(ValueError, pattern=re.escape(text)):
            bc.swiglu(x, sku=record)
    assert bc.swiglu.plan(x, sku=sku).sku == sku


def test_a_choice_of_another_backend_contradicts_the_forced_one():
    x = np.ones((2, 8), np.float32)
    sku = bc.swiglu.plan(x).sku
    with raises(ValueError, "swiglu: sku: expected one of backend array_api, got numpy"):
        bc.swiglu(x, sku=sku, backend="array_api")


@pytest.mark.parametrize("text", ["", "{}", "[1]", "null", '{"precision": {}}', "{"])
def test_a_text_that_is_no_sku_is_said_to_be_none(text):
    with pytest.raises(ValueError, match="KernelSku: not a SKU record"):
        bc.KernelSku.from_json(text)
    with raises(ValueError, pattern="swiglu: sku: .*not a SKU record"):
        bc.swiglu(np.ones((2, 8)), sku=text)


def test_the_options_block_is_checked_and_left_behind():
    x = np.ones((2, 8), np.float32)
    with (
        pytest.raises(TypeError, match=r"^options: backends: expected one of autotune, backend"),
        bc.options(backends="numpy"),
    ):
        pass
    with (
        raises(TypeError, "options: autotune: expected True or False, got 1"),
        bc.options(autotune=1),
    ):
        pass
    with pytest.raises(ValueError, match="swiglu: backend"), bc.options(backend="nope"):
        bc.swiglu(x)
    assert bc.swiglu.plan(x).sku.backend == "numpy"


def test_an_error_of_a_problem_leaves_no_plan_behind():
    for name, (call, kind, _) in BAD.items():
        if any(part in name for part in ("weight", "lambd", "alpha", "sku of")):
            # A bad run-time value meets a good plan; two cases take a SKU from a plan of their own.
            continue
        with pytest.raises(kind):
            call(Make("torch"))
    assert bc.plan_cache.info().size == 0


# plans


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (lambda a: (a(1, 8),), "x: expected shape (2, 8) (as planned), got (1, 8)"),
        (lambda a: (a(8, 2),), "x: expected shape (2, 8) (as planned), got (8, 2)"),
        (lambda a: (a.ints(2, 8),), "x: expected dtype float32 (as planned), got int32"),
        (lambda a: (a.other(2, 8),), "x: expected library {own} (as planned), got {other}"),
    ],
)
def test_a_plan_says_which_fact_of_an_array_differs(a, given, text):
    plan = bc.swiglu.plan(a(2, 8))
    other = "torch" if a.name == "numpy" else "numpy"
    with raises(ValueError, f"swiglu: {text.format(own=a.name, other=other)}; make another plan"):
        plan(*given(a))
    plan(a(2, 8))


def test_a_plan_is_tied_to_its_device():
    with raises(
        ValueError, "swiglu: x: expected device cpu (as planned), got meta; make another plan"
    ):
        bc.swiglu.plan(torch.ones(2, 8))(torch.ones(2, 8, device="meta"))


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda p, x: p(), ValueError, "swiglu: plan: expected 1 arrays, got 0"),
        (lambda p, x: p(x, x), ValueError, "swiglu: plan: expected 1 arrays, got 2"),
        (lambda p, x: p([1.0]), TypeError, "swiglu: x: expected an array, got builtins.list"),
        (lambda p, x: p(x, foo=1), TypeError,
         "swiglu: foo: expected no run-time values, got that keyword; keywords are none"),
        (lambda p, x: p(x, axis=1), TypeError,
         "swiglu: axis: expected no run-time values, got that keyword; "
         "a structural option is part of the plan"),
    ],
)  # fmt: skip
def test_a_plan_takes_its_arrays_and_run_time_values_only(call, kind, text):
    x = np.ones((2, 8), np.float32)
    with raises(kind, text):
        call(bc.swiglu.plan(x), x)


@pytest.mark.parametrize(
    ("given", "text"),
    [({}, "lerp: weight: expected a value, got none; the keyword is required"),
     ({"weight": "a"}, "lerp: weight: expected a real number, got 'a'"),
     ({"weight": 0.5, "wieght": 1},
      "lerp: wieght: expected weight, got that keyword; write weight=")],
)  # fmt: skip
def test_a_plan_checks_its_run_time_values(given, text):
    x = np.ones(4)
    out = np.full(4, 7.0)
    with raises(TypeError, text):
        bc.lerp.plan(x, x)(x, x, out=out, **given)
    assert (out == 7).all()


# out=: everything is checked before anything is written


def _lerp_out(out, a=None, b=None, **more):
    a = np.ones((4, 6), np.float32) if a is None else a
    b = np.zeros(a.shape, np.float32) if b is None else b
    return bc.lerp.plan(a, b)(a, b, weight=0.5, out=out, **more)


def _unaligned(shape):
    raw = np.zeros(1 + 4 * math.prod(shape), np.uint8)
    return raw[1:].view(np.float32).reshape(shape)


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (np.zeros((4, 5), np.float32), "out (y): expected shape (4, 6), got (4, 5)"),
        (np.zeros((4, 6, 1), np.float32), "out (y): expected shape (4, 6), got (4, 6, 1)"),
        (np.zeros((4, 6)), "out (y): expected dtype float32, got float64"),
        (np.zeros((4, 6), ">f4"), "out (y): expected dtype float32, got >f4"),
        (torch.zeros(4, 6), "out (y): expected library numpy, got torch"),
        ((np.zeros((4, 6), np.float32),) * 2, "out: expected 1 arrays, got 2"),
        ((), "out: expected 1 arrays, got 0"),
        (np.broadcast_to(np.float32(0), (4, 6)), "out (y): expected a writable array, "
                                                 "got a read-only one"),
        (np.lib.stride_tricks.as_strided(np.zeros(24, np.float32), (4, 6), (0, 4)),
         "out: expected elements apart, got an array that overlaps itself"),
        (np.lib.stride_tricks.as_strided(np.zeros(24, np.float32), (4, 6), (4, 4)),
         "out: expected elements apart, got an array that overlaps itself"),
    ],
)  # fmt: skip
def test_an_out_that_does_not_fit_is_refused_and_untouched(out, text):
    outs = out if isinstance(out, tuple) else (out,)
    before = [x.tolist() for x in outs]
    with raises(ValueError, f"lerp: {text}"):
        _lerp_out(out)
    assert [x.tolist() for x in outs] == before


def test_an_out_that_is_no_array_is_named():
    with raises(TypeError, "lerp: out (y): expected an array, got builtins.float"):
        _lerp_out(1.0)


def test_out_of_another_device_and_of_torch():
    x = torch.ones(4)
    plan = bc.lerp.plan(x, x)
    with raises(ValueError, "lerp: out (y): expected device cpu, got meta"):
        plan(x, x, weight=0.5, out=torch.ones(4, device="meta"))
    with raises(ValueError, "lerp: out (y): expected shape (4,), got (3,)"):
        plan(x, x, weight=0.5, out=torch.ones(3))
    with raises(ValueError, "lerp: out: expected memory apart from a, got an overlap; "
                            "this op is safe in place on the whole array"):  # fmt: skip
        whole = torch.ones(5)
        bc.lerp.plan(x, x)(whole[:4], x, weight=0.5, out=whole[1:])


BUFFER = np.arange(60, dtype=np.float32)


@pytest.mark.parametrize(
    ("out", "a", "fits"),
    [
        (BUFFER[1:25], BUFFER[:24], False),
        (BUFFER[23:47], BUFFER[:24], False),
        (BUFFER[24:48], BUFFER[:24], True),
        (BUFFER[0:48:2], BUFFER[1:49:2], True),
        (BUFFER[0:48:2], BUFFER[0:48:2], True),
        (BUFFER[:24], BUFFER[23::-1], False),
        (BUFFER[0:48:2], BUFFER[:24], False),
        (BUFFER[:24].reshape(4, 6), BUFFER[:24].reshape(6, 4).T, False),
        (BUFFER[:36].reshape(6, 6)[:, :3], BUFFER[:36].reshape(6, 6)[:, 3:], True),
        (BUFFER[:36].reshape(6, 6)[:, :3], BUFFER[:36].reshape(6, 6)[:, 2:5], False),
    ],
)
def test_out_may_be_an_input_or_apart_from_it_but_not_overlap_it(out, a, fits):
    kept = BUFFER.copy()
    try:
        a = a.reshape(out.shape) if a.flags.c_contiguous else a
        want = bc.lerp(a.copy(), np.zeros_like(a), weight=0.5)
        if fits:
            assert _lerp_out(out, a) is out
            assert np.array_equal(out, want)
            return
        with raises(ValueError, "lerp: out: expected memory apart from a, got an overlap; "
                                "this op is safe in place on the whole array"):  # fmt: skip
            _lerp_out(out, a)
        assert np.array_equal(BUFFER, kept)
    finally:
        BUFFER[:] = kept


@pytest.mark.parametrize("xp", [np, torch])
def test_an_op_that_is_not_safe_in_place_takes_no_input_as_out(xp):
    x = xp.arange(6.0)
    x = x.reshape(1, 6)
    kept = x.tolist()
    with raises(ValueError, "rms_norm: out: expected memory apart from x, got an overlap"):
        bc.rms_norm.plan(x)(x, out=x)
    assert x.tolist() == kept


@pytest.mark.parametrize("second", ["shape", "same", "read-only"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_when_the_second_out_is_refused_the_first_is_untouched(second, accumulate):
    dy = np.ones(6, np.float32)
    first = np.full(6, 7, np.float32)
    other = {"shape": np.zeros(5, np.float32), "same": first, "read-only": np.zeros(6, np.float32)}
    other["read-only"].flags.writeable = False
    with raises(ValueError, pattern=r"^lerp_backward: out"):
        bc.lerp_backward.plan(dy)(dy, weight=0.5, out=(first, other[second]), accumulate=accumulate)
    assert (first == 7).all()


@pytest.mark.parametrize("xp", [np, torch])
@pytest.mark.parametrize("backend", [None, "array_api"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_an_index_out_of_range_leaves_out_untouched(xp, backend, accumulate):
    dout, good = xp.ones((2, 3)), xp.zeros((2, 3), dtype=xp.int64)
    bad = xp.asarray([[0, 1, 2], [3, 4, 99]])
    out = xp.full((2, 8), 7.0, dtype=dout.dtype)
    plan = bc.gather_backward.plan(dout, good, axis=1, src_shape=(2, 8), backend=backend)
    with raises(
        IndexError, "gather_backward: index: expected 0 <= i < 8, got 99 at position (1, 2)"
    ):
        plan(dout, bad, out=out, accumulate=accumulate)
    assert (out == 7).all()
    taken = xp.full((2, 3), 7.0, dtype=dout.dtype)
    with raises(IndexError, "gather: index: expected 0 <= i < 8, got 99 at position (1, 2)"):
        bc.gather.plan(out, good, axis=1, backend=backend)(out, bad, out=taken)
    assert (taken == 7).all()


def test_a_refused_array_leaves_out_untouched():
    x = np.ones((2, 8), np.float32)
    out = np.full((2, 4), 7, np.float32)
    plan = bc.swiglu.plan(x, backend="torch")
    with pytest.raises(NotImplementedError, match="takes no unaligned NumPy array"):
        plan(_unaligned((2, 8)), out=out)
    with pytest.raises(NotImplementedError, match="takes no unaligned NumPy array"):
        plan(x, out=_unaligned((2, 4)))
    assert (out == 7).all()


def test_immutable_arrays_take_no_out():
    x = jnp.ones((2, 8))
    with raises(
        NotImplementedError,
        "swiglu: out: arrays of jax are immutable: leave it out, and use the result",
    ):
        bc.swiglu.plan(x)(x, out=jnp.ones((2, 4)))


def test_only_gradients_accumulate_and_only_into_something():
    x = np.ones((2, 8), np.float32)
    out = np.full((2, 4), 7, np.float32)
    with raises(
        NotImplementedError,
        "swiglu: accumulate: expected False, got True: only gradients add into their outputs; "
        "write out += swiglu(...)",
    ):
        bc.swiglu.plan(x)(x, out=out, accumulate=True)
    assert (out == 7).all()
    with raises(ValueError, "swiglu_backward: accumulate: expected out= to add into, got none"):
        bc.swiglu_backward.plan(out, x)(out, x, accumulate=True)
    dx = np.full((2, 8), 7, np.float32)
    with raises(TypeError, "swiglu_backward: accumulate: expected True or False, got 'no'"):
        bc.swiglu_backward.plan(out, x)(out, x, out=dx, accumulate="no")
    assert (dx == 7).all()


# plan-cache files


@pytest.fixture
def saved(tmp_path):
    bc.swiglu(np.ones((2, 8), np.float32))
    bc.gather(np.ones((2, 8)), np.zeros((2, 3), np.int32), axis=1)
    path = tmp_path / "plans.json"
    bc.plan_cache.save(path)
    return path


def _edited(path, **plan):
    content = json.loads(path.read_text())
    content["plans"][0].update(plan)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "damage",
    {
        "empty": lambda p: p.write_text(""),
        "truncated": lambda p: p.write_text(p.read_text()[:-40]),
        "half": lambda p: p.write_text(p.read_text()[: p.stat().st_size // 2]),
        "not JSON": lambda p: p.write_text("plans: none"),
        "not text": lambda p: p.write_bytes(b"\xff\xfe\x00\x80"),
        "a list": lambda p: p.write_text("[]"),
        "a number": lambda p: p.write_text("1"),
        "null": lambda p: p.write_text("null"),
        "another object": lambda p: p.write_text("{}"),
        "no plans": lambda p: p.write_text('{"format": 1, "plans": null}'),
        "plans no list": lambda p: p.write_text('{"format": 1, "plans": 3}'),
        "another format": lambda p: p.write_text('{"format": 9, "plans": []}'),
        "a plan without a sku": lambda p: _edited(p, sku=None),
        "a sku of numbers": lambda p: _edited(p, sku={"op": 1}),
        "a key of objects": lambda p: _edited(p, key={"a": 1}),
        "nested without end": lambda p: p.write_text("[" * 200_000),
    }.items(),
    ids=lambda item: item[0],
)  # fmt: skip
def test_a_damaged_plan_cache_file_is_an_error_and_nothing_of_it_is_taken(saved, damage):
    damage[1](saved)
    before = bc.plan_cache.info()
    text = f"plan_cache.load: {saved}: not a plan-cache file: "
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        bc.plan_cache.load(saved)
    assert bc.plan_cache.info() == before
    bc.swiglu(np.ones((2, 8), np.float32))


def test_records_of_another_version_are_ignored_and_logged(saved, caplog):
    content = json.loads(saved.read_text())
    for plan in content["plans"]:
        plan["sku"]["version"] = "0.0.1"
    saved.write_text(json.dumps(content))
    bc.plan_cache.clear()
    with caplog.at_level(logging.INFO, logger="baracuda"):
        assert bc.plan_cache.load(saved) == 0
    assert caplog.messages[0] == (
        f"a record of swiglu is ignored: made by version 0.0.1, this is {bc.__version__}"
    )
    assert bc.swiglu.plan(np.ones((2, 8), np.float32)).sku.version == bc.__version__


@pytest.mark.parametrize(
    ("change", "taken", "line"),
    [
        ({"arch": "sm_90"}, 0, "a record of swiglu is ignored: "),
        ({"backend": "gone"}, 0, "a record of swiglu is ignored: "),
        ({"op": "glu"}, 0, "a record of glu is ignored: op glu in a problem of swiglu"),
        # What a variant is, only its backend knows, once there is a problem.
        ({"variant": "vec8"}, 2, "a loaded choice is ignored: swiglu: "),
    ],
)
def test_records_that_no_longer_fit_are_ignored_and_logged(saved, caplog, change, taken, line):
    x = np.ones((2, 8), np.float32)
    want = bc.swiglu.plan(x).sku
    content = json.loads(saved.read_text())
    for plan in content["plans"]:
        plan["sku"].update(change)
    saved.write_text(json.dumps(content))
    bc.plan_cache.clear()
    with caplog.at_level(logging.INFO, logger="baracuda"):
        assert bc.plan_cache.load(saved) == taken
        assert bc.swiglu.plan(x).sku == want
    assert caplog.messages[0].startswith(line)


def test_arrays_of_another_form_say_what_they_are_for() -> None:
    ids, weight, own = np.array([[0, 1]]), np.ones((2, 2)), np.ones((1, 2))
    with pytest.raises(TypeError, match=r"\(ids, weight, per_sample_weight\) is for reduction=sum"):
        bc.embedding_bag(ids, weight, None, own)


def test_no_pair_turns_where_there_is_no_frequency() -> None:
    x = np.ones((3, 4))
    np.testing.assert_array_equal(bc.rope(x, frequencies=[]), x)


def test_a_missing_file_is_the_errors_of_any_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        bc.plan_cache.load(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError):
        bc.plan_cache.save(tmp_path / "no" / "such.json")


def test_a_save_that_fails_leaves_nothing_behind(tmp_path, saved):
    target = tmp_path / "folder"
    (target / "inside").mkdir(parents=True)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError):
        bc.plan_cache.save(target)
    assert sorted(tmp_path.iterdir()) == before


def test_only_an_extent_of_1_broadcasts() -> None:
    x = np.ones((2, 3, 5, 4))
    for shape in ((2, 3, 5), (1, 3, 5), (2, 1, 1)):
        bc.rope(x, np.zeros(shape, int))
    for shape, text in (((2, 2, 5), "expected 3 or 1 along"), ((2, 3, 4), "expected 5 or 1 along")):
        with pytest.raises(ValueError, match=re.escape(text)):
            bc.rope(x, np.zeros(shape, int))
