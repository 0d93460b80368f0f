"""On NumPy bodies of elementwise ops are recorded, and blocks go through the record."""

from types import SimpleNamespace

import numpy as np
import pytest

import baracuda as bc
from baracuda.backends.numpy import programs
from baracuda.calls.op import registry
from baracuda.declaration.spec import Problem

# More than two blocks, the last of which is short.
SHAPE = (301, 1031)


@pytest.fixture
def records(monkeypatch):
    """The programs that are made from now on; None where the body runs as it is."""
    made, record = [], programs._record

    def noted(problem: Problem, *given):
        made.append(record(problem, *given))
        return made[-1]

    monkeypatch.setattr(programs, "_record", noted)
    bc.plan_cache.clear()
    return made


def arrays(op, dtype):
    form = op.spec.signatures[0]
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(SHAPE) * 3).astype(dtype) for _ in form.inputs]


POINTWISE = [
    name for name, op in registry.items()
    if op.spec.pointwise and not (op.spec.numbered or op.spec.discrete or op.spec.composite)
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", POINTWISE)
def test_a_record_gives_the_bits_of_the_body(name, dtype, records):
    op = registry[name]
    given, options = arrays(op, dtype), op.spec.cases[0].options
    before = [x.copy() for x in given]
    found = op(*given, **options)
    whole = op(*given, **options, backend="array_api")
    assert records[-1] is not None
    np.testing.assert_equal(found, whole)
    np.testing.assert_equal(given, before)


def test_other_numbers_have_a_record_of_their_own(records):
    x = np.linspace(-1, 1, 1 << 19, dtype=np.float32)
    for value in (0.0, -0.0, 2.0, 2.0):
        y = bc.threshold(x, threshold=0.5, value=value)
        np.testing.assert_equal(y[0], np.float32(value))
    assert len(records) == 3


@pytest.mark.parametrize(
    "body",
    [
        lambda x: np.sum(x),
        lambda x: np.cumsum(x, axis=0),
        lambda x: x * np.arange(3.0),
        lambda x: np.add(x, x, out=np.empty(3)),
        lambda x: x / x.shape[0],
        lambda x: x if x.any() else -x,
        lambda x: -x if x > 0 else x,
        lambda x: np.asarray(x) + 1,
        lambda x: x > 0,
        lambda x: 1.0,
    ],
)
def test_what_is_not_of_elements_alone_is_not_recorded(body):
    spec = SimpleNamespace(body=body)
    problem = SimpleNamespace(spec=spec, options={}, outputs=(None,))
    assert programs._record(problem, [np.ones(3)], np.dtype("float64"), {}) is None


def test_results_may_be_alike_or_inputs():
    spec = SimpleNamespace(body=lambda x, y: (x, z := x * y, z, np.where(y > 0, x, 0.0)))
    problem = SimpleNamespace(spec=spec, options={}, outputs=(None,) * 4)
    x, y = np.asarray([1.0, 2.0]), np.asarray([3.0, -4.0])
    program = programs._record(problem, [x, y], np.dtype("float64"), {})
    outs = [np.empty(2) for _ in range(4)]
    program([x, y], outs, [np.empty(2, dtype) for dtype in program.registers])
    np.testing.assert_array_equal(outs, [x, x * y, x * y, [1.0, 0.0]])


def test_rows_too_long_for_a_block_are_cut_as_before(records):
    x = np.random.default_rng(0).standard_normal((2, 1 << 20), dtype=np.float32)
    y = bc.swiglu(x)
    np.testing.assert_array_equal(y, bc.swiglu(x, backend="array_api"))


def test_given_results_may_be_inputs(records):
    x = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
    want = bc.silu(x)
    plan = bc.silu.plan(x)
    np.testing.assert_array_equal(plan(x, out=x), want)


@pytest.mark.parametrize("op", [bc.silu, bc.mish])
def test_records_neither_warn_nor_raise(op, records):
    x = np.full((512, 1024), -3e38, np.float32)
    with np.errstate(all="raise"):
        assert (op(x) == 0).all()
    assert records[-1] is not None


def test_read_only_arrays_and_views_with_steps(records):
    x = np.random.default_rng(0).standard_normal((600, 2000), dtype=np.float32)
    part = x[::2, ::-2]
    part.flags.writeable = False
    np.testing.assert_array_equal(bc.hardswish(part), bc.hardswish(part.copy()))
    np.testing.assert_array_equal(bc.hardswish(part.T), bc.hardswish(part).T)
