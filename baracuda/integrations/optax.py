"""optax's optimisers whose step is one pass over parameters, gradients and states.

`adamw`, `adam`, `sgd` and `lion` take optax's arguments, and their states are optax's own: what one
began, the other goes on with. `Stepping.apply` gives new parameters; `update` gives updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

try:
    import jax
    import jax.numpy as jnp
    import optax
except ModuleNotFoundError as error:
    if error.name not in ("jax", "optax"):
        raise
    raise ModuleNotFoundError(
        "baracuda.integrations.optax needs JAX and optax: pip install 'baracuda[flax]'",
        name=error.name,
    ) from None

from baracuda.errors import value_error
from baracuda.ops import optimisers

__all__ = ["Stepping", "adam", "adamw", "lion", "sgd"]

Array: TypeAlias = Any
Tree: TypeAlias = Any
Rate: TypeAlias = Any
"""A number, an array of one, or a schedule: a function of the count of steps."""


class Stepping(optax.GradientTransformationExtraArgs):  # type: ignore[misc]
    """An optax transformation that also steps parameters itself.

    Attributes
    ----------
    init : callable
        ``init(params) -> state``, the state of optax's transformation of the same name.
    update : callable
        ``update(grads, state, params=None, *, grad_scale=1.0, found_inf=0.0) -> (updates, state)``.
        Updates have the dtype of `params`, without these that of `grads`.
    apply : callable
        ``apply(params, grads, state, *, copy=False, grad_scale=1.0, found_inf=0.0)``, which returns
        ``(params, state)``, with `copy` ``(params, state, copied)``.

    Notes
    -----
    Gradients are divided by `grad_scale`, and a `found_inf` other than 0 skips the step, which then
    does not count; both may be traced, as `baracuda.clip_scale` gives them. `copied` are the new
    parameters in the dtypes of `grads`: of float32 masters the parameters of a model.

    States and parameters may be float32 beside 16-bit gradients. Each step is computed in float32
    (float64 for float64), and each result is rounded once to the dtype that it had.
    """

    apply: Callable[..., Any]

    def __new__(cls, init: Any, update: Any, apply: Any) -> Stepping:
        self: Stepping = super().__new__(cls, init, update)
        self.apply = apply
        return self


@dataclass(frozen=True)
class _Method:
    """How the states of an optax transformation are those of an op.

    Attributes
    ----------
    op : Op
    like : optax.GradientTransformation
        optax's own of these arguments: a chain of states, the last of which counts for the rate.
    moments : tuple of str
        What the first of those states has for the op.
    values : mapping
        Run-time values that stay.
    learning_rate, weight_decay : Rate
    mask : tree of bool, callable or None
        To which parameters the decay applies.
    numbered : bool
        Whether the op takes the number of a step.
    """

    op: Any
    like: Any
    moments: tuple[str, ...]
    values: Mapping[str, Any]
    learning_rate: Rate
    weight_decay: Rate = 0.0
    mask: Any = None
    numbered: bool = False

    def stepping(self) -> Stepping:
        return Stepping(self.like.init, self.update, self.apply)

    def apply(
        self, params: Tree, grads: Tree, state: Any, *, copy: bool = False,
        grad_scale: Any = 1.0, found_inf: Any = 0.0,
    ) -> Any:  # fmt: skip
        def new(param: Array, grad: Array, update: Array) -> tuple[Array, ...]:
            wide = param.astype(update.dtype) + update
            own = wide.astype(param.dtype)
            return (own, wide.astype(grad.dtype)) if copy else (own,)

        *results, after = self._step(new, 1 + copy, params, grads, state, grad_scale, found_inf)
        return (results[0], after, *results[1:])

    def update(
        self, grads: Tree, state: Any, params: Tree = None, *, grad_scale: Any = 1.0,
        found_inf: Any = 0.0, **extra: Any,
    ) -> tuple[Tree, Any]:  # fmt: skip
        del extra  # Of other transformations in a chain.
        if params is None:
            if _some(self.weight_decay):
                expected = "the parameters, because weight_decay needs them"
                hint = "write update(grads, state, params)"
                raise value_error(self.op.spec.name, "params", expected, None, hint=hint)
            params = grads

        def new(param: Array, grad: Array, update: Array) -> tuple[Array, ...]:
            return (update.astype(param.dtype),)

        updates, after = self._step(new, 1, params, grads, state, grad_scale, found_inf)
        return updates, after

    def _step(
        self, new: Callable[[Array, Array, Array], tuple[Array, ...]], number: int, params: Tree,
        grads: Tree, state: Any, grad_scale: Any, found_inf: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Trees of what `new` makes of a parameter, its gradient and update; the state after."""
        values = {**self.values, "lr": self._rate(state), "grad_scale": grad_scale}
        skipped = jnp.asarray(found_inf) != 0 if _some(found_inf) else None
        if skipped is not None:
            values["found_inf"] = skipped.astype(jnp.float32)
        if self.numbered:
            values["step"] = state[0].count + 1
        decay = self._decay(state)
        lost = values["lr"] * decay if _some(decay) else 0.0
        if skipped is not None:
            lost = jnp.where(skipped, 0, lost)
        leaves, tree = jax.tree.flatten(grads, is_leaf=_is_none)
        moments = [getattr(state[0], name) for name in self.moments]
        columns = [tree.flatten_up_to(x) for x in (params, self._decays(params, grads), *moments)]
        rows = []
        for grad, param, decays, *own in zip(leaves, *columns, strict=True):
            if grad is None:
                rows.append((*[None] * number, *own))
                continue
            update, *after = _moved(self.op, grad, param, own, values)
            if decays and _some(lost):
                update = update - jnp.asarray(lost, update.dtype) * param.astype(update.dtype)
            rows.append((*new(param, grad, update), *after))
        trees = [*map(tree.unflatten, zip(*rows, strict=True))] or [grads] * (number + len(moments))
        return *trees[:number], self._after(state, trees[number:], skipped)

    def _decays(self, params: Tree, grads: Tree) -> Tree:
        """Which parameters decay, of a mask that may end above them."""

        def alike(decays: Any, some: Tree) -> Tree:
            return jax.tree.map(lambda _: bool(decays), some, is_leaf=_is_none)

        if self.mask is None:
            return alike(True, grads)
        mask = self.mask(params) if callable(self.mask) else self.mask
        return jax.tree.map(alike, mask, grads)

    def _rate(self, state: Any) -> Any:
        rate = self.learning_rate
        return rate(state[-1].count) if callable(rate) else rate

    def _decay(self, state: Any) -> Any:
        if not callable(self.weight_decay):
            return self.weight_decay
        counted = state[1] if self.mask is None else state[1].inner_state
        return self.weight_decay(counted.count)

    def _after(self, state: Any, moments: Sequence[Tree], skipped: Any) -> Any:
        """The state after a step, which counts unless it was skipped."""

        def counted(part: Any) -> Any:
            if isinstance(part, optax.MaskedState):
                return part._replace(inner_state=counted(part.inner_state))
            if "count" not in getattr(part, "_fields", ()):
                return part
            count = optax.safe_increment(part.count)
            kept = count if skipped is None else jnp.where(skipped, part.count, count)
            return part._replace(count=kept)

        first, *others = map(counted, state)
        named = dict(zip(self.moments, moments, strict=True))
        return (first._replace(**named) if named else first, *others)


def _is_none(x: Any) -> bool:
    return x is None


def _some(value: Any) -> bool:
    """Whether a value may be other than 0."""
    return isinstance(value, jax.Array) or callable(value) or bool(value)


def _moved(
    op: Any, grad: Array, param: Array, moments: Sequence[Array], values: Mapping[str, Any]
) -> tuple[Array, ...]:
    """The update in the accumulate dtype, and the moments in their own.

    An op adds the update to a parameter. From 0 its result is the update, with all of its digits.
    """
    wide = jnp.result_type(param, grad, *moments, jnp.float32)
    # Nothing but float32 lies beside 16 bits, and states are of one dtype.
    fits = {grad.dtype, wide} if grad.dtype.itemsize < wide.itemsize == 4 else {wide}
    alike = len({x.dtype for x in moments}) == 1
    some = [x if alike and x.dtype in fits else x.astype(wide) for x in moments]
    at = grad if grad.dtype in fits else grad.astype(wide)
    # As its body, which XLA fuses with what is done before and after; a kernel would end that.
    found = op(jnp.zeros_like(param, wide), at, *some, **values, backend="array_api")
    found = found if isinstance(found, tuple) else (found,)
    return found[0], *[x.astype(y.dtype) for x, y in zip(found[1:], moments, strict=True)]


def _of_adam(
    like: Any, b1: Any, b2: Any, eps: Any, rate: Rate, decay: Rate = 0.0, mask: Any = None
) -> Stepping:
    # Parameters decay here, not in the op, which begins from 0.
    values = {"beta1": b1, "beta2": b2, "eps": eps, "weight_decay": 0.0}
    method = _Method(optimisers.adamw, like, ("mu", "nu"), values, rate, decay, mask, True)
    return method.stepping()


def adamw(
    learning_rate: Rate, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, *, mu_dtype: Any = None,
    weight_decay: Rate = 1e-4, mask: Any = None,
) -> Stepping:  # fmt: skip
    """AdamW as `optax.adamw` has it, by `baracuda.adamw`.

    Parameters
    ----------
    learning_rate, b1, b2, eps, mu_dtype, weight_decay, mask
        As in `optax.adamw`, whose `eps_root` and `nesterov` are not there.

    Returns
    -------
    Stepping

    Notes
    -----
    Deterministic: as `baracuda.adamw`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from baracuda.integrations.optax import adamw
    >>> transform, params = adamw(0.1), jnp.ones(2)
    >>> params, state = transform.apply(params, jnp.asarray([0.5, -2.0]), transform.init(params))
    >>> params
    Array([0.89999, 1.09999], dtype=float32)
    """
    like = optax.adamw(
        learning_rate, b1, b2, eps, mu_dtype=mu_dtype, weight_decay=weight_decay, mask=mask
    )
    return _of_adam(like, b1, b2, eps, learning_rate, weight_decay, mask)


def adam(
    learning_rate: Rate, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, *, mu_dtype: Any = None
) -> Stepping:
    """Adam as `optax.adam` has it, by `baracuda.adamw` without its decay.

    Parameters
    ----------
    learning_rate, b1, b2, eps, mu_dtype
        As in `optax.adam`, whose `eps_root` and `nesterov` are not there.

    Returns
    -------
    Stepping

    Notes
    -----
    Deterministic: as `baracuda.adamw`.
    """
    like = optax.adam(learning_rate, b1, b2, eps, mu_dtype=mu_dtype)
    return _of_adam(like, b1, b2, eps, learning_rate)


def sgd(
    learning_rate: Rate, momentum: Any = None, nesterov: bool = False, accumulator_dtype: Any = None
) -> Stepping:
    """Stochastic gradient descent as `optax.sgd` has it, by `baracuda.sgd`.

    Parameters
    ----------
    learning_rate, momentum, nesterov, accumulator_dtype
        As in `optax.sgd`.

    Returns
    -------
    Stepping

    Notes
    -----
    Deterministic: as `baracuda.sgd`.
    """
    like = optax.sgd(learning_rate, momentum, nesterov, accumulator_dtype)
    if momentum is None:
        return _Method(optimisers.sgd, like, (), {}, learning_rate).stepping()
    values = {"momentum": momentum, "nesterov": nesterov}
    return _Method(optimisers.sgd, like, ("trace",), values, learning_rate).stepping()


def lion(
    learning_rate: Rate, b1: Any = 0.9, b2: Any = 0.99, mu_dtype: Any = None,
    weight_decay: Rate = 1e-3, mask: Any = None,
) -> Stepping:  # fmt: skip
    """Lion as `optax.lion` has it, by `baracuda.lion`.

    Parameters
    ----------
    learning_rate, b1, b2, mu_dtype, weight_decay, mask
        As in `optax.lion`.

    Returns
    -------
    Stepping

    Notes
    -----
    Deterministic: as `baracuda.lion`.
    """
    like = optax.lion(learning_rate, b1, b2, mu_dtype, weight_decay, mask)
    values = {"beta1": b1, "beta2": b2}
    return _Method(
        optimisers.lion, like, ("mu",), values, learning_rate, weight_decay, mask
    ).stepping()
