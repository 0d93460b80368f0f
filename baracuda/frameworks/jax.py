"""JAX: the ops under jit, grad, jvp, vmap and shard_map, each gradient by the explicit backward op.

An op is a `jax.custom_jvp` whose tangents are one linear call that transposes into the backward op.
`jax.custom_vjp` would tie the two as well, but forbids forward mode, and with it `jax.hessian` and
`jax.linearize`. Everything is read off the declarations:

- `adjoint_of` names the pair. The backward is called with what its signature names: cotangents
  (``dy`` of ``y``), inputs, saved outputs, and shapes of inputs that it takes as options.
- Where the backward takes no floating input but cotangents, the forward is linear; then each of
  the two transposes into the other.
- Tangents of other ops are those of the body, and so are second derivatives through a backward.
- What a gradient may need of a call has a name for policies of `jax.checkpoint`: ``rms_norm.y``.

Batching and partitioning are left to JAX and XLA where what they see is the body; a kernel comes
with rules of its own (`backends.cuda.jax`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import add
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax._src import dispatch
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from baracuda.calls import adjoint, body, ranges
from baracuda.calls.op import Op, registry
from baracuda.calls.plan import Plan
from baracuda.calls.routes import routes
from baracuda.declaration.backend import Runner
from baracuda.declaration.dispatch import NAMES
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import OpSpec
from baracuda.declaration.values import Number, Whole
from baracuda.errors import type_error
from baracuda.families.numerics import of_values, unread
from baracuda.libraries import Array
from baracuda.libraries.jax import varies_along

Function: TypeAlias = Callable[..., tuple[Array, ...]]


@dataclass(frozen=True, eq=False, slots=True)
class Linear:
    """A function that is linear in its last arguments, with its transpose.

    Attributes
    ----------
    residuals : int
        How many arguments come before those.
    forward : callable
        ``(*residuals, *tangents) -> tangents of the outputs``.
    transpose : callable
        ``(*residuals, *cotangents of the outputs) -> cotangents``, one for each tangent.
    """

    residuals: int
    forward: Function
    transpose: Function


linear_p = Primitive("baracuda_linear")
"""Calls a `Linear`. Like `jax.custom_derivatives.linear_call`, but it batches, and the residuals
may be differentiated."""
linear_p.multiple_results = True


def _forward(*args: Array, linear: Linear) -> tuple[Array, ...]:
    return linear.forward(*args)


def _avals(*avals: Any, linear: Linear) -> Any:
    return jax.make_jaxpr(linear.forward)(*avals).out_avals


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], *, linear: Linear) -> Any:
    """Linear where it is linear; what moves the residuals goes through `forward` itself."""
    n = linear.residuals
    parts = []
    if any(type(t) is not ad.Zero for t in tangents[n:]):
        along = map(ad.instantiate_zeros, tangents[n:])
        parts.append(linear_p.bind(*primals[:n], *along, linear=linear))
    moving = [i for i, t in enumerate(tangents[:n]) if type(t) is not ad.Zero]
    if moving:

        def at(*moved: Array) -> tuple[Array, ...]:
            args = dict(enumerate(primals)) | dict(zip(moving, moved, strict=True))
            return linear.forward(*args.values())

        parts.append(jax.jvp(at, *([x[i] for i in moving] for x in (primals, tangents)))[1])
    out = linear_p.bind(*primals, linear=linear)
    return out, parts[0] if len(parts) == 1 else list(map(add, *parts))


def _transpose(cotangents: Sequence[Any], *args: Any, linear: Linear) -> list[Any]:
    n = linear.residuals
    some = [jnp.asarray(ad.instantiate_zeros(ct)) for ct in cotangents]
    gradients = linear.transpose(*map(jnp.asarray, args[:n]), *some)
    wanted = map(ad.is_undefined_primal, args[n:])
    return [None] * n + [g if w else None for g, w in zip(gradients, wanted, strict=True)]


def _batch(args: Sequence[Array], dims: Sequence[int | None], *, linear: Linear) -> Any:
    """Residuals stay unbatched where they are; all tangents are batched, for one transpose."""
    n = linear.residuals
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    front = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)]
    for i in range(n, len(args)):
        if dims[i] is None:
            front[i] = jnp.broadcast_to(args[i], (size, *args[i].shape))
    along = tuple(None if d is None else 0 for d in dims[:n])

    def batched(function: Function) -> Function:
        return lambda *some: jax.vmap(function, (*along, *[0] * (len(some) - n)))(*some)

    both = Linear(n, batched(linear.forward), batched(linear.transpose))
    out = linear_p.bind(*front, linear=both)
    return out, [0] * len(out)


_TOGETHER = Linear(0, lambda *results: results, lambda *cotangents: cotangents)
"""Results as they are, all of them batched where one is: their tangents are. JAX 0.10 gives one
that is not batched, beside a tangent that is, the axis of the batch twice."""
linear_p.def_impl(_forward)
linear_p.def_abstract_eval(_avals)
ad.primitive_jvps[linear_p] = _jvp
ad.primitive_transposes[linear_p] = _transpose
batching.primitive_batchers[linear_p] = _batch
mlir.register_lowering(linear_p, mlir.lower_fun(_forward, multiple_results=True))
# The lowering of a kernel needs to know the devices. JAX looks for such operations in the programs
# among the parameters of others, and a `Linear` is not one.
getattr(dispatch, "prim_requires_devices_during_lowering", set()).add(linear_p)


@dataclass(frozen=True, slots=True)
class _Call:
    """All that a call is but its arrays; alike are those whose values are written alike."""

    plan: Plan
    traced: tuple[str, ...]
    scalars: Mapping[str, Any] = field(compare=False)
    dispatch: Mapping[str, Any] = field(compare=False)
    # 0.0 equals -0.0, but is not written so.
    written: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "written", repr((self.scalars, self.dispatch)))


@lru_cache(maxsize=1024)
def program_of(call: _Call) -> Function:
    """A call as a function of JAX, which traces, differentiates and lowers it once.

    A layer that occurs many times in a model is one function of the program.
    """
    plan, scalars, traced = call.plan, call.scalars, call.traced
    # A kernel reads run-time values from the host.
    run = _by_body(plan, scalars, traced) if traced else device_call(plan, scalars)
    if plan.problem.dtype in FLOATS:
        run = _differentiable(plan, scalars, run, call.dispatch, traced)

    def program(*given: Array) -> tuple[Array, ...]:
        return run(*given)

    # The name under which the op stands in a jaxpr and in a profile.
    program.__name__ = plan.problem.spec.name
    return jax.jit(program)  # type: ignore[no-any-return]


class JaxRoute:
    """Takes every call that JAX traces."""

    def takes(self, op: Op[Any, Any], arrays: Sequence[Array], mode: str) -> bool:
        return True

    def call(self, op: Op[Any, Any], arrays: Sequence[Array], options: dict[str, Any]) -> Any:
        traced = {n: options[n] for n in op.spec.scalars if isinstance(options.get(n), jax.Array)}
        if traced:
            options = {name: value for name, value in options.items() if name not in traced}
        plan = op.plan(*arrays, **options)
        scalars = plan.scalars(options, without=traced)
        # Within the call even a constant index is traced: now its values can be looked at.
        ranges.check(plan.problem, arrays)
        # A record says how to run this op, not its partner.
        dispatch = {k: v for k, v in options.items() if k in NAMES} | {"sku": None}
        call = program_of(_Call(plan, tuple(traced), scalars, dispatch))
        values = [_number(op, name, x) for name, x in traced.items()]
        result = call(*_varying([*[x for x in arrays if x is not None], *values]))
        return result if len(result) > 1 else result[0]


def device_call(plan: Plan, scalars: Mapping[str, Any]) -> Function:
    """What computes a planned op within a compiled program, from the arrays that are there.

    The one place where a program meets the kernels of its device; JAX does not differentiate what
    is behind it. Where no kernel takes the problem it is the body.
    """
    return _on_given(plan, plan.run, scalars)


def _number(op: Op[Any, Any], name: str, x: Array) -> Array:
    """A run-time value of which only the program will know what it is."""
    takes, got = op.spec.scalars[name], f"{x.dtype} of shape {x.shape}"
    if isinstance(takes, Whole) and takes.code == "Q":
        if not x.shape and jnp.issubdtype(x.dtype, jnp.integer):
            return _words(x)
        if x.shape != (2,) or x.dtype != jnp.uint32:
            expected = "an integer of no axes, or two words of uint32, the low one first"
            raise type_error(op.spec.name, name, expected, got)
        return x
    if isinstance(takes, Whole) and not x.shape and jnp.issubdtype(x.dtype, jnp.integer):
        return x
    if x.shape or not jnp.issubdtype(x.dtype, jnp.floating):
        raise type_error(op.spec.name, name, "a real number, or a floating array of no axes", got)
    if not isinstance(takes, Number):
        raise type_error(op.spec.name, name, "a Python value", "an array that JAX traces")
    return x


def _words(x: Array) -> Array:
    """The 64 bits of an integer, a negative one's too, as two words: the low one first."""
    wide = x.dtype.itemsize == 8
    high = x >> 32 if wide else jnp.where(x < 0, -1, 0)
    return jnp.stack([word.astype(jnp.uint32) for word in (x, high)])


def _by_body(plan: Plan, scalars: Mapping[str, Any], traced: Sequence[str]) -> Function:
    """The body, as a function of the arrays that are there and of traced run-time values."""
    run, problem = body.runner(plan.problem), plan.problem

    def call(*args: Array) -> tuple[Array, ...]:
        given, values = args[: len(problem.given)], args[len(problem.given) :]
        # A seed keeps its words.
        some = {
            name: x if jnp.shape(x) else body.taken(problem, name, jnp.asarray(x))
            for name, x in zip(traced, values, strict=True)
        }
        with unread() if traced else nullcontext():
            return body.of_given(problem, run, {**scalars, **some})(*map(jnp.asarray, given))

    return call


def _on_given(plan: Plan, run: Runner, scalars: Mapping[str, Any]) -> Function:
    call = body.of_given(plan.problem, run, scalars)
    # Derivatives may be taken at, and along, NumPy arrays.
    return lambda *given: call(*map(jnp.asarray, given))


def _differentiable(
    plan: Plan,
    scalars: Mapping[str, Any],
    call: Function,
    dispatch: Mapping[str, Any],
    traced: tuple[str, ...],
) -> Function:
    """`call` with the derivatives that the declarations give; by traced values through the body."""
    problem, spec = plan.problem, plan.problem.spec
    names = [*[x.name for x in problem.given], *traced]
    flowing = adjoint.flowing(problem)
    results = [x.name for x in problem.outputs]
    outputs = [results[i] for i in flowing]
    floats = [i for i, name in enumerate(names) if name not in spec.discrete]
    define = _by_body(plan, scalars, traced)
    partner, linear = adjoint.partner(spec)
    kept = [n for n in names if n in spec.discrete or n in traced] if linear else [*names, *results]

    def primal(*given: Array) -> tuple[Array, ...]:
        with of_values():
            found = call(*given)
        return tuple(linear_p.bind(*found, linear=_TOGETHER)) if len(found) > 1 else found

    primal.__name__ = spec.name
    function = jax.custom_jvp(primal)

    def with_floats(f: Function, given: Sequence[Array], some: Sequence[Array]) -> Any:
        args = dict(enumerate(given)) | dict(zip(floats, some, strict=True))
        return f(*args.values())

    def forward(*args: Array) -> tuple[Array, ...]:
        tangents = args[len(kept) :]
        if linear:
            known = dict(zip(kept, args, strict=False))
            return with_floats(function, [known.get(n) for n in names], tangents)  # type: ignore[no-any-return]
        given = args[: len(names)]
        at = tuple(given[i] for i in floats)
        along = jax.jvp(lambda *some: with_floats(define, given, some), at, tangents)[1]
        return tuple([along[i] for i in flowing])

    def by_body(primals: Sequence[Array], tangents: Sequence[Array]) -> Any:
        return function(*primals), jax.jvp(define, primals, tangents)[1]

    if partner is None:
        function.defjvp(by_body)
        return function  # type: ignore[no-any-return]

    dual = partial(adjoint.dual, spec)

    def ask(known: Collection[str]) -> adjoint.Request:
        return adjoint.request(partner, problem, known)

    open = (*adjoint.constants(problem, ask({*kept, *map(dual, outputs)})), *traced)
    floats = [i for i in floats if names[i] not in open]
    dtypes = [problem.library.dtype(x.dtype) for x in problem.given]

    def transpose(*args: Array) -> tuple[Array, ...]:
        known = dict(zip([*kept, *map(dual, outputs)], args, strict=True))
        values = {**scalars, **{name: known[name] for name in traced}}
        found = ask(known).call(registry[partner.name], known, {**values, **dispatch})
        # One gradient of two inputs has the dtype of the wider.
        return tuple(found[dual(names[i])].astype(dtypes[i]) for i in floats)

    def by_partner(primals: Sequence[Array], tangents: Sequence[Array]) -> Any:
        out = _named(spec, results, function(*primals))
        known = dict(zip([*names, *results], [*primals, *out], strict=True))
        residuals, along = [known[n] for n in kept], [tangents[i] for i in floats]
        moved = linear_p.bind(*residuals, *along, linear=Linear(len(kept), forward, transpose))
        return out, _along(out, flowing, moved)

    def by_either(primals: Sequence[Array], tangents: Sequence[Any]) -> Any:
        # What the partner has no cotangent for moves only where somebody asks for that.
        zero = [type(t) is SymbolicZero for t in tangents]
        along = tuple(
            ad.instantiate_zeros(ad.Zero(t.aval)) if z else t
            for t, z in zip(tangents, zero, strict=True)
        )
        moves = any(not zero[i] for i, name in enumerate(names) if name in open)
        return (by_body if moves else rule)(primals, along)

    early, rule = adjoint.ahead(problem), by_partner
    if early is not None and not traced:
        rule = partial(_by_early, plan, early, scalars, dispatch, floats)
    if open:
        function.defjvp(by_either, symbolic_zeros=True)
    else:
        function.defjvp(rule)
    return function  # type: ignore[no-any-return]


def _by_early(
    plan: Plan, early: OpSpec, scalars: Mapping[str, Any], dispatch: Mapping[str, Any],
    floats: Sequence[int], primals: Sequence[Array], tangents: Sequence[Array],
) -> Any:  # fmt: skip
    """The derivatives of a loss whose gradients cost least in the same pass.

    Gradients are what the loss is linear in beside tangents: forward mode pays for them as well.
    """
    slots = iter(primals)
    arrays = [None if x is None else next(slots) for x in plan.problem.inputs]
    options = {**plan.problem.options, **scalars, **dispatch}
    found = registry[early.name](*arrays, **options)
    out, made = found[: len(plan.problem.outputs)], found[len(plan.problem.outputs) :]
    made = _named(plan.problem.spec, adjoint.made_ahead(early, plan.problem), made)

    def forward(*args: Array) -> tuple[Array, ...]:
        pairs = zip(args[: len(made)], args[len(made) :], strict=True)
        wide = plan.problem.library.dtype(plan.problem.compute_dtype)
        along = [jnp.vdot(g.astype(wide), t.astype(wide)) for g, t in pairs]
        return (sum(along[1:], along[0]).astype(out[0].dtype),)

    def transpose(*args: Array) -> tuple[Array, ...]:
        return tuple([(g * args[-1].astype(g.dtype)) for g in args[:-1]])

    rule = Linear(len(made), forward, transpose)
    moved = linear_p.bind(*made, *[tangents[i] for i in floats], linear=rule)
    return out, _along(out, (0,), moved)


def _named(spec: OpSpec, names: Sequence[str], arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Arrays under the names by which a policy of `jax.checkpoint` may save them."""
    both = zip(names, arrays, strict=True)
    return tuple([checkpoint_name(x, f"{spec.name}.{name}") for name, x in both])


def _along(
    out: Sequence[Array], flowing: Sequence[int], tangents: Sequence[Array]
) -> tuple[Array, ...]:
    """A tangent of each result: of metrics and positions it is 0."""
    known = dict(zip(flowing, tangents, strict=True))
    return tuple([known[i] if i in known else _zero(x) for i, x in enumerate(out)])


def _zero(x: Array) -> Any:
    return ad.instantiate_zeros(ad.Zero(jax.typeof(x).to_tangent_aval()))


def _varying(arrays: Sequence[Array]) -> list[Array]:
    """Under `shard_map`, the arrays as varying along all mesh axes along which any does.

    The gradient of one that did not vary is then summed over the devices, where it should be.
    """
    axes = [varies_along(x) for x in arrays]
    union: frozenset[Any] = frozenset().union(*axes)
    return [
        x if own == union else jax.lax.pcast(x, tuple(union - own), to="varying")
        for x, own in zip(arrays, axes, strict=True)
    ]


routes["jax"] = JaxRoute()
