"""JAX: every op under jit, grad, jvp, vmap and sharding; gradients by the explicit backward."""

from __future__ import annotations

import functools
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import lanes
import numpy as np
import pytest
from kinds import PAIRS, SLOPING, USUAL, one_of_category, runs_both_ways
from over_devices import ROOT, works

import baracuda as bc
from baracuda.calls import body
from baracuda.calls.op import op as declare
from baracuda.calls.op import registry
from baracuda.frameworks.jax import program_of
from baracuda.testing.cases import Call, Subject

# Where the backward takes nothing that the forward is not linear in.
LINEAR = ("gather", "lerp", "rope")


def _usual_axis(given: tuple[str, int]) -> bool:
    """One axis of one op of each category: the last of a gradient, the first of its op."""
    op, axis = given
    return op in USUAL and axis == (-1 if registry[op].spec.adjoint_of else 0)


@pytest.fixture
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


class Given:
    """A call on JAX arrays: the op and its plain body as functions of the arrays that are there."""

    def __init__(self, call: Call) -> None:
        self.call, spec = call, call.subject.spec
        self.names = [n for n in spec.arrays if n in call.arrays]
        self.arrays = [jnp.asarray(call.arrays[n]) for n in self.names]
        self.floats = [i for i, n in enumerate(self.names) if n in call.watched]
        self.inputs = tuple(self.arrays[i] for i in self.floats)
        options = {k: v for k, v in call.options.items() if k not in spec.scalars}
        self.problem = call.subject.function.plan(*call.given(), **options).problem
        run = body.runner(self.problem)
        # One program: an eager body is compiled operation by operation.
        self.plain = jax.jit(lambda *given: run(self._all(given), None, False, call.scalars))

    def _all(self, arrays: Sequence[Any]) -> list[Any]:
        known = dict(zip(self.names, arrays, strict=True))
        return [known.get(n) for n in self.call.subject.spec.arrays]

    def op(self, *arrays: Any) -> Any:
        return self.call.subject.function(*self._all(arrays), **self.call.options)

    def of_floats(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*some: Any) -> Any:
            args = dict(enumerate(self.arrays)) | dict(zip(self.floats, some, strict=True))
            return function(*args.values())

        return call

    def loss(self, function: Callable[..., Any]) -> Callable[..., Any]:
        of_floats = self.of_floats(function)
        return lambda *some: sum(
            jnp.sum(jnp.sin(jnp.where(jnp.isinf(y), 0, y)))
            for y in jax.tree.leaves(of_floats(*some))
        )

    def grad(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.grad(self.loss(function), argnums=tuple(range(len(self.floats))))

    def second(self, function: Callable[..., Any]) -> Callable[..., Any]:
        first = self.grad(function)
        return jax.grad(
            lambda *some: sum(jnp.sum(jnp.cos(g)) for g in first(*some)),
            argnums=tuple(range(len(self.floats))),
        )

    def along(self) -> tuple[Any, ...]:
        rng = np.random.default_rng(3)
        return tuple(jnp.asarray(rng.standard_normal(x.shape), x.dtype) for x in self.inputs)


def given(op: str, dtype: str, most: int | None = None) -> Iterator[Given]:
    """Every form at every case, or at the first `most` cases."""
    calls = list(Subject(op, "array_api", "jax", dtype).calls())
    for call in calls[: most and most * len(registry[op].spec.signatures)]:
        yield Given(call)


def close(got: Any, want: Any, label: Any, tolerance: float = 1e-9) -> None:
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert x.dtype == y.dtype
        if x.dtype == jax.dtypes.float0:
            continue
        assert isinstance(x, jax.Array)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance, err_msg=f"{label}")


# In float32 that is a law.
@pytest.mark.parametrize(
    ("op", "dtype"),
    lanes.cases(
        itertools.product(registry, ("float32", "float64")),
        lambda given: one_of_category(given[0]) and given[1] == "float64",
    ),
)
def test_jit_gives_what_a_plain_call_gives(op: str, dtype: str) -> None:
    with Subject(op, "array_api", "jax", dtype).context():
        for g in lanes.last(given(op, dtype, most=1)):
            tolerance = 1e-5 if dtype == "float32" else 1e-12
            close(jax.jit(g.op)(*g.arrays), g.op(*g.arrays), g.call.form.text, tolerance)


# The second derivative of a gradient is the third of its forward.
@pytest.mark.slow("the full lane compiles two derivatives of each form of ops made of others")
@pytest.mark.parametrize("op", lanes.cases(registry, runs_both_ways))
@pytest.mark.usefixtures("wide")
def test_first_and_second_derivatives_are_those_of_the_body(op: str) -> None:
    # The options of pooling and indexing choose the formula, those of the others only axes.
    several = lanes.FULL and registry[op].spec.category in ("pooling", "indexing")
    for g in lanes.last(given(op, "float64", most=None if several else 1)):
        for order in (g.grad, g.second) if lanes.FULL or op in USUAL else (g.grad,):
            got, want = jax.jit(lambda *x, o=order, g=g: (o(g.op)(*x), o(g.plain)(*x)))(*g.inputs)
            close(got, want, f"{g.call.case} {g.call.form.text} {order.__name__}")


# Forward mode goes through all that is optional as one.
@pytest.mark.slow("the full lane compiles each form of ops made of others")
@pytest.mark.parametrize("op", lanes.cases(registry, lanes.thinned(one_of_category)))
@pytest.mark.usefixtures("wide")
def test_forward_mode_is_that_of_the_body(op: str) -> None:
    for g in lanes.last(given(op, "float64", most=1)):
        got, want = (
            jax.jit(functools.partial(jax.jvp, g.of_floats(f)))(g.inputs, g.along())
            for f in (g.op, g.plain)
        )
        close(got, want, g.call.form.text)
        assert (op in SLOPING) == any(np.any(x) for x in jax.tree.leaves(got[1]))


@pytest.mark.parametrize("op", ["swiglu", "lp_pool1d", "rope_backward", "lerp"])
@pytest.mark.usefixtures("wide")
def test_both_modes_compose_either_way(op: str) -> None:
    g = next(given(op, "float64"))
    loss = g.loss(g.op)
    want = jax.jit(jax.jacfwd(jax.jacrev(g.loss(g.plain))))(*g.inputs)
    for outer, inner in ((jax.jacfwd, jax.jacrev), (jax.jacrev, jax.jacfwd),
                         (jax.jacrev, jax.jacrev), (jax.jacfwd, jax.jacfwd)):  # fmt: skip
        close(jax.jit(outer(inner(loss)))(*g.inputs), want, op)


# the explicit backward is what runs


def inside(jaxpr: Any) -> Iterator[Any]:
    """What a jaxpr does at its own level and inside of jit."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("jit", "pjit"):
            yield from inside(eqn.params["jaxpr"].jaxpr)
        else:
            yield eqn


def called(jaxpr: Any) -> list[str]:
    """The ops that a jaxpr calls, at its own level and inside of jit."""
    return [
        eqn.params["call_jaxpr"].jaxpr.debug_info.func_name
        for eqn in inside(jaxpr)
        if eqn.primitive.name == "custom_jvp_call"
    ]


def ahead(g: Given) -> Any:
    """The op that makes a loss with its gradients, where these are of all that has one.

    A teacher, of which it makes none, has the gradient of the body.
    """
    spec = g.call.subject.spec
    early = registry[spec.name].early
    if early is None or g.call.form.outputs[0].terms:
        return None
    made = {x.name for form in early.spec.signatures for x in form.outputs}
    floats = [name for name in g.call.form.names if name in g.call.watched]
    return early if {f"d{name}" for name in floats} <= made else None


@pytest.mark.parametrize(
    ("forward", "backward"), lanes.cases(PAIRS, lambda pair: runs_both_ways(pair[0]))
)
def test_the_gradient_calls_the_explicit_backward(forward: str, backward: str) -> None:
    for g in given(forward, "float32", most=None if lanes.FULL else 1):
        pull = jax.make_jaxpr(g.grad(g.op))(*g.inputs)
        want = [early.spec.name] if (early := ahead(g)) else [forward, backward]
        assert called(pull.jaxpr) == want, g.call.form.text
        assert called(jax.make_jaxpr(jax.jit(g.grad(g.op)))(*g.inputs).jaxpr) == want


@pytest.mark.parametrize(
    ("forward", "backward"),
    lanes.cases(PAIRS, lambda pair: pair[0] in USUAL),
)
def test_an_eager_gradient_calls_the_explicit_backward_once(
    forward: str, backward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = next(given(forward, "float32"))
    if (early := ahead(g)) is not None:
        # It makes the gradients in the forward pass.
        backward = early.spec.name
    seen, own = [], registry[backward]
    # What an earlier test has differentiated calls nothing anew.
    program_of.cache_clear()

    def counted(*arrays: Any, **options: Any) -> Any:
        seen.append(options.pop("backend"))
        return own(*arrays, **options)

    counted.spec = own.spec  # type: ignore[attr-defined]
    monkeypatch.setitem(registry, backward, counted)  # type: ignore[arg-type]
    forced = functools.partial(registry[forward], **g.call.options, backend="array_api")
    out, pull = jax.vjp(g.of_floats(forced), *g.inputs)
    assert seen == ["array_api"] * (early is not None)
    pull(out)
    assert seen == ["array_api"], "a forced backend goes with the gradient"


@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_a_student_are_made_ahead(weighted: bool) -> None:
    """A teacher that is not differentiated does not keep them from it."""
    drawn = np.random.default_rng(7).standard_normal
    student, teacher = (drawn((5, 4)), drawn((9, 4))), (drawn((5, 3)), drawn((9, 3)))
    rows = [np.asarray([1.0, 0.0, 2.0, 0.5, 1.0])] * weighted
    given = [jnp.asarray(x, jnp.float32) for x in (*student, *teacher, *rows)]

    def plain(x: Any, w: Any, y: Any, u: Any, share: Any = 1.0) -> Any:
        own, taught = (jax.nn.log_softmax(z, -1) for z in (x @ w.T, y @ u.T))
        each = (jnp.exp(taught) * (taught - own)).sum(-1)
        return (each * share).sum() / jnp.broadcast_to(share, 5).sum()

    for watched in ((0, 1), (0,)):
        slopes = jax.value_and_grad(bc.linear_kl_div, watched)
        assert called(jax.make_jaxpr(slopes)(*given).jaxpr) == ["linear_kl_div_with_gradient"]
        close(slopes(*given), jax.value_and_grad(plain, watched)(*given), watched, 1e-5)
    for watched in ((0, 2), (1, 3)):
        slopes = jax.value_and_grad(bc.linear_kl_div, watched)
        close(slopes(*given), jax.value_and_grad(plain, watched)(*given), watched, 1e-5)


def test_a_layer_that_is_repeated_is_one_function_of_the_program() -> None:
    def layers(x: jax.Array, count: int) -> jax.Array:
        for _ in range(count):
            x = bc.gelu(bc.layer_norm(x))
        return (x * x).sum()

    x = jnp.linspace(-1, 1, 32).reshape(4, 8)
    for function, calls in ((layers, 2), (jax.grad(layers), 4)):
        few, many = (jax.jit(function, static_argnums=1).lower(x, n).as_text() for n in (2, 7))
        for text in (few, many):
            assert "func.func private @layer_norm" in text
            assert "func.func private @gelu" in text
        assert few.count("func.func") == many.count("func.func")
        # A call each, forward and backward, of functions that are there already.
        assert len(many.splitlines()) - len(few.splitlines()) == 5 * calls


def test_a_program_without_derivatives_masks_no_logits_for_them() -> None:
    x = jnp.zeros((3, 5)).at[1].set(jnp.inf)
    target = jnp.asarray([1, -100, 2])
    want, slopes = jax.value_and_grad(bc.cross_entropy)(x, target)
    text = jax.jit(bc.cross_entropy).lower(x, target).as_text()
    assert "tensor<3x5xf32>" in text
    assert not re.search(r"select.*tensor<3x5xf32>", text)
    # What is differentiated does, through the body too.
    assert jnp.isfinite(want)
    assert jnp.isfinite(slopes).all()
    _, along = jax.jvp(lambda x: bc.cross_entropy(x, target), (x,), (jnp.ones_like(x),))
    assert jnp.isfinite(along)
    assert jnp.isfinite(jax.hessian(lambda x: bc.cross_entropy(x, target))(x)).all()


@pytest.mark.parametrize(
    ("op", "others"),
    [
        ("softmax", []), ("log_softmax", []), ("logsumexp", []), ("cross_entropy", ["target"]),
        ("log_prob", ["target"]), ("soft_target_cross_entropy", ["shares"]),
    ],
)  # fmt: skip
def test_no_derivative_asks_which_element_is_the_largest(op: str, others: list[str]) -> None:
    """A program may compute elements twice, in other bits: then none equals the largest."""
    x = jnp.linspace(-1, 1, 15).reshape(3, 5)
    given = {"target": jnp.asarray([1, 0, 2]), "shares": jnp.full((3, 5), 0.2)}

    def along(x: jax.Array, t: jax.Array) -> Any:
        return jax.jvp(lambda x: registry[op](x, *map(given.get, others)), (x,), (t,))[1]

    text = jax.jit(along).lower(x, x).as_text()
    assert "stablehlo.maximum" in text
    assert not re.search(r"compare +EQ.*tensor<3x5xf32>", text)


def test_programs_of_values_that_are_equal_but_not_the_same_are_apart() -> None:
    x = jnp.full((3,), -1.0)
    for value in (0.0, -0.0):
        got = jax.jit(lambda x, v=value: bc.threshold(x, threshold=0.5, value=v))(x)
        assert np.signbit(got).tolist() == [bool(np.signbit(value))] * 3


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_backward_is_transposed_by_its_forward(name: str) -> None:
    for first, second in ((name, f"{name}_backward"), (f"{name}_backward", name)):
        g = next(given(first, "float32"))
        assert called(jax.make_jaxpr(g.grad(g.op))(*g.inputs).jaxpr) == [first, second]
        tangents = jax.make_jaxpr(functools.partial(jax.jvp, g.of_floats(g.op)))
        eqns = inside(tangents(g.inputs, g.along()).jaxpr)
        (linear,) = [eqn for eqn in eqns if eqn.primitive.name == "baracuda_linear"]
        assert len(linear.invars) == len(g.names), "nothing is saved but the integers"


def test_the_first_call_of_a_process_may_be_a_gradient() -> None:
    code = """
import sys, jax, jax.numpy as jnp, baracuda as bc
x = jnp.ones((2, 4))
bc.swiglu(x)
assert "baracuda.frameworks.jax" not in sys.modules
bc.plan_cache.clear()
print(jax.make_jaxpr(jax.grad(lambda x: bc.swiglu(x).sum()))(x))
assert "torch" not in sys.modules
"""
    for source in (code, code.replace("bc.swiglu(x)\n", "\n", 1)):
        done = subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, check=True, cwd=ROOT
        )
        assert "name=swiglu_backward" in done.stdout


def test_an_op_without_a_backward_is_differentiated_through_its_body() -> None:
    def cube(x: Any, /, **dispatch: Any) -> Any:
        """x ** 3."""
        return x * x * x

    made = declare("x[*s] -> y[*s]", category="elementwise")(cube)
    try:
        x = jnp.asarray([1.0, -2.0])
        for _ in range(2):
            close(jax.grad(lambda x: made(x).sum())(x), 3 * x * x, "cube")
            close(jax.hessian(lambda x: made(x).sum())(x), jnp.diag(6 * x), "cube", 1e-6)
        close(jax.vmap(made)(x), x**3, "cube", 1e-6)
    finally:
        del registry["cube"]


# batches


def batched(x: Any, axis: int, count: int = 3) -> np.ndarray[Any, Any]:
    """A batch along `axis`; integers and masks are rolled, so that they stay what they are.

    By NumPy, as JAX would compile a program for each shape.
    """
    x = np.asarray(x)
    parts = [np.roll(x, i) if x.dtype.kind in "ib" else x * (1 + i) - i for i in range(count)]
    return np.stack(parts, axis)


def batches(g: Given, axis: int) -> Iterator[tuple[tuple[int | None, ...], list[Any], Any]]:
    """Each operand batched along `axis`, and all of them: axes, operands, and what a loop gives."""
    n = len(g.arrays)
    for which in [*([i] for i in range(n)), *([range(n)] if n > 1 else [])]:
        given = [batched(x, axis) if i in which else x for i, x in enumerate(g.arrays)]
        parts = [
            g.plain(*[np.take(x, k, axis) if i in which else x for i, x in enumerate(given)])
            for k in range(3)
        ]
        want = jax.tree.map(lambda *y: np.stack(y), *parts)
        yield tuple(axis if i in which else None for i in range(n)), given, want


@pytest.mark.slow("the full lane compiles a program for each operand of ops made of others")
@pytest.mark.parametrize(
    ("op", "axis"), lanes.cases(itertools.product(registry, (0, -1)), lanes.thinned(_usual_axis))
)
def test_vmap_over_each_operand_is_a_loop(op: str, axis: int) -> None:
    for g in lanes.last(given(op, "float32", most=1)):
        for axes, batch, want in batches(g, axis):
            close(jax.jit(jax.vmap(g.op, axes))(*batch), want, f"{g.call.form.text} {axes}", 2e-5)


@pytest.mark.parametrize("op", lanes.cases(registry, lanes.thinned(one_of_category)))
@pytest.mark.usefixtures("wide")
def test_gradients_batch_and_nest(op: str) -> None:
    for g in lanes.last(given(op, "float64", most=1)):
        (first, *rest) = g.inputs
        twice = jnp.stack([first, first + 1])[:, None] * jnp.ones((1, 3, *[1] * first.ndim))

        def nested(f: Callable[..., Any], x: Any, g: Given = g, rest: Any = rest) -> Any:
            grad = g.grad(f)
            return jax.vmap(jax.vmap(lambda x: grad(x, *rest)))(x)

        # Last, a gradient through a batch, whose unbatched operands collect from all of it.
        def through(f: Callable[..., Any], x: Any, g: Given = g, rest: Any = rest) -> Any:
            def loss(x: Any, *rest: Any) -> Any:
                return jnp.sum(jax.vmap(jax.vmap(lambda x: g.loss(f)(x, *rest)))(x))

            return jax.grad(loss, argnums=tuple(range(len(rest) + 1)))(x, *rest)

        for way in (nested, through):
            got, want = jax.jit(lambda x, w=way, g=g: (w(g.op, x), w(g.plain, x)))(twice)
            close(got, want, f"{g.call.form.text} {way.__name__}")


def test_control_flow_and_recomputation_keep_the_gradient() -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 8)), jnp.float32)

    def layer(x: Any) -> Any:
        return bc.rope(bc.lerp(x, bc.swiglu(x, jnp.sin(x)), weight=0.3))

    def unrolled(x: Any) -> Any:
        return layer(layer(layer(x))).sum()

    def scanned(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (layer(c), None), x, None, length=3)[0].sum()

    want = jax.grad(unrolled)(x)
    close(jax.grad(scanned)(x), want, "scan", 1e-5)
    close(jax.jit(jax.grad(scanned))(x), want, "scan in jit", 1e-5)
    close(jax.grad(jax.checkpoint(unrolled))(x), want, "checkpoint", 1e-5)
    value, slope = jax.value_and_grad(unrolled)(x)
    close((value, slope), (unrolled(x), want), "value_and_grad", 1e-5)


def test_policies_of_checkpoint_save_by_name() -> None:
    x, weight, target = jnp.ones((6, 4)), jnp.ones((9, 4)), jnp.arange(6)

    def loss(x: Any, weight: Any) -> Any:
        return bc.linear_cross_entropy(bc.rms_norm(jnp.sin(x)), weight, target)

    def made(name: str, *saved: str) -> int:
        """How often an op is in the program of a gradient: by its own name once, and its call's."""
        policy = jax.checkpoint_policies.save_only_these_names(*saved)
        slopes = jax.grad(jax.checkpoint(loss, policy=policy), (0, 1))
        close(slopes(x, weight), jax.grad(loss, (0, 1))(x, weight), saved, 1e-6)
        return str(jax.make_jaxpr(slopes)(x, weight)).count(f"name={name}\n")

    head = ["linear_cross_entropy.dhidden", "linear_cross_entropy.dweight"]
    op = "linear_cross_entropy_with_gradient"
    assert made(op) == 2 * made(op, *head) > 0
    assert made(op, *head[:1]) == made(op)
    assert made("rms_norm") > made("rms_norm", "rms_norm.y") > 0


# arguments


def test_derivatives_are_taken_at_and_along_numpy_arrays() -> None:
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    close(jax.grad(lambda x: bc.swiglu(x).sum())(x), jax.grad(
        lambda x: bc.swiglu(x).sum())(jnp.asarray(x)), "grad")  # fmt: skip
    out, along = jax.jvp(bc.rope, (x,), (np.ones_like(x),))
    close((out, along), (bc.rope(jnp.asarray(x)), bc.rope(jnp.ones_like(x))), "jvp", 1e-6)
    out, pull = jax.vjp(bc.glu, x)
    close(pull(np.ones(out.shape, np.float32)), pull(jnp.ones_like(out)), "vjp")


def test_a_constant_index_out_of_range_is_found_while_tracing() -> None:
    src, bad = jnp.ones((2, 3)), jnp.asarray([[0], [7]])
    message = r"gather: index: expected 0 <= i < 3, got 7 at position \(1, 0\)"
    for transform in (jax.jit, jax.grad, lambda f: jax.jit(jax.grad(f))):
        with pytest.raises(IndexError, match=message):
            transform(lambda s: bc.gather(s, bad, axis=1).sum())(src)
    dropped = jax.grad(lambda s: bc.gather(s, bad, axis=1, mode="drop").sum())(src)
    close(dropped, jnp.asarray([[1.0, 0, 0], [0, 0, 0]]), "drop")
    close(jax.jit(lambda s, i: bc.gather(s, i, axis=1))(src, bad),
          jnp.asarray([[1.0], [0.0]]), "traced")  # fmt: skip


def test_what_has_no_explicit_gradient_still_traces() -> None:
    at = jnp.asarray([[1, 1]])
    close(jax.jit(lambda s: bc.gather(s, at, axis=1))(jnp.asarray([[3, 4]])),
          jnp.asarray([[4, 4]]), "integers")  # fmt: skip
    slope = jax.grad(lambda s: bc.gather(s, at, axis=1).real.sum())(jnp.ones((1, 2), jnp.complex64))
    close(slope, jnp.asarray([[0, 2]], jnp.complex64), "complex")
    half = jnp.ones((4, 8), jnp.bfloat16)
    assert jax.grad(lambda x: bc.swiglu(x).sum().astype(jnp.float32))(half).dtype == jnp.bfloat16


def test_options_stay_what_they_are_while_traced() -> None:
    x = jnp.ones((2, 4))
    with pytest.raises(TypeError, match="softmax: axis: expected an integer"):
        jax.jit(lambda x, axis: bc.softmax(x, axis=axis))(x, 1)
    with pytest.raises(TypeError, match=r"missing a required .*argument: 'weight'"):
        jax.jit(lambda x: bc.lerp(x, x))(x)
    with pytest.raises(NotImplementedError, match="swiglu: backend 'torch' refuses"):
        jax.grad(lambda x: bc.swiglu(x, backend="torch").sum())(x)
    with pytest.raises(ValueError, match="swiglu: x: expected an even extent"):
        jax.vmap(bc.swiglu)(jnp.ones((2, 3)))


# devices


def _compilations(calls: Callable[[], Any]) -> int:
    """How many programs XLA makes for some calls."""
    made: list[str] = []

    def note(event: str, *_: Any, **__: Any) -> None:
        if event.endswith("backend_compile_duration"):
            made.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        calls()
    finally:
        jax.monitoring.clear_event_listeners()
    return len(made)


def test_an_eager_call_is_one_program_whatever_its_values() -> None:
    x, target = jnp.linspace(-2, 2, 35).reshape(5, 7), jnp.arange(5)
    norm, entropy = bc.rms_norm.plan(x, eps=1e-5), bc.cross_entropy.plan(x, target)
    negative = -x
    assert _compilations(lambda: norm(x, eps=1e-5)) == 1
    assert _compilations(lambda: (norm(x, eps=1e-3), norm(negative, eps=0.5))) == 0
    # What the body decides by is part of the program.
    entropy(x, target)
    assert _compilations(lambda: entropy(x, target, softcap=3.0)) == 1
    assert _compilations(lambda: entropy(negative, target, softcap=3.0)) == 0
    bc.lerp(x, negative, weight=0.25), bc.lerp(x, negative, weight=0.75)
    assert _compilations(lambda: [bc.lerp(x, negative, weight=i / 9) for i in range(9)]) == 0


# The full lane spreads gradients by themselves too, as custom calls (`test_jax_kernels`).
@pytest.mark.parametrize("op", lanes.cases(registry, one_of_category))
def test_over_four_devices(op: str) -> None:
    works(op, "host")
