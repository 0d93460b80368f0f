"""How an op and its gradient belong together, for authors of autograd engines.

All of it is read off the two declarations: they share the names of arrays and options, the
cotangent of a result ``y`` is called ``dy``, and the gradient of an input ``x`` is ``dx``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from baracuda.declaration.dtypes import name_of
from baracuda.declaration.spec import OpSpec
from baracuda.errors import type_error
from baracuda.layouts import Shape
from baracuda.libraries import Array, library_of


class Kept(NamedTuple):
    """What a gradient needs of a call of its forward.

    Attributes
    ----------
    inputs : tuple of str
        The inputs that were given, by name.
    arrays : dict of str to array
        What is saved of inputs and results, by name.
    options : dict
        Keywords of the gradient, shapes of inputs among them.
    results : tuple of tuple of int
        The shape of each result, in order.
    dtypes : dict of str to dtype
        Those of inputs and results, by name.
    """

    inputs: tuple[str, ...]
    arrays: dict[str, Array]
    options: dict[str, Any]
    results: tuple[Shape, ...]
    dtypes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pairing:
    """The gradient of an op: what it takes, and whose gradient each of its results is.

    Attributes
    ----------
    op : Op
        The gradient.
    inputs : tuple of str
        The arrays that the forward takes, in order.
    cotangents : dict of str to str
        Of each result of the forward, how the gradient calls its cotangent: ``{"y": "dy"}``.
    saved : tuple of str
        The inputs and results of the forward that the gradient takes, by name.
    gradients : dict of str to str
        Of each input of the forward that has a gradient, which result that is: ``{"x": "dx"}``. Two
        inputs may share one, as the summands of `add_rms_norm` do. That of the residual of
        `rms_norm_add` is the cotangent ``dy`` itself.
    options : tuple of str
        Keywords that carry over from the forward.
    shapes : dict of str to str
        Keywords of the gradient that hold the shape of an input of the forward.
    dtypes : dict of str to str
        Keywords of the gradient that name the dtype of an input of the forward.

    Notes
    -----
    Inputs that are not in `gradients` are indices, masks, or arrays along which only the body can
    be differentiated, as the target of `mse_loss`. Which of the gradients a call returns depends on
    the arrays given: `layer_norm_backward` returns ``dweight`` and ``dbias`` beside a weight.
    """

    op: Callable[..., Any]
    inputs: tuple[str, ...]
    cotangents: Mapping[str, str]
    saved: tuple[str, ...]
    gradients: Mapping[str, str]
    options: tuple[str, ...]
    shapes: Mapping[str, str]
    dtypes: Mapping[str, str]
    _forward: OpSpec
    _backward: OpSpec

    def keep(self, arrays: Sequence[Array], results: Any, options: Mapping[str, Any]) -> Kept:
        """Gather what the gradient needs of a call.

        Parameters
        ----------
        arrays : sequence of array or None
            The arguments of the forward.
        results : array or tuple of array
            What it returned.
        options : dict
            The keywords it was called with.

        Returns
        -------
        Kept
        """
        made = results if isinstance(results, tuple) else (results,)
        inputs = {n: x for n, x in zip(self.inputs, arrays, strict=False) if x is not None}
        form = next(f for f in self._forward.forms(options) if f.takes(inputs))
        known = {**inputs, **{p.name: x for p, x in zip(form.outputs, made, strict=True)}}
        shapes = {option: tuple(inputs[name].shape) for option, name in self.shapes.items()}
        dtypes = {option: name_of(inputs[name].dtype) for option, name in self.dtypes.items()}
        return Kept(
            tuple(inputs),
            {name: known[name] for name in self.saved if name in known},
            {**{k: v for k, v in options.items() if k in self.options}, **shapes, **dtypes},
            tuple([tuple(x.shape) for x in made]),
            {name: x.dtype for name, x in known.items()},
        )

    def pull(self, kept: Kept, cotangents: Sequence[Array | None]) -> dict[str, Array]:
        """Compute the gradients of the inputs.

        Parameters
        ----------
        kept : Kept
        cotangents : sequence of array or None
            One for each result, in order; None, for a result that was not used, counts as zeros.

        Returns
        -------
        dict of str to array
            By the names of the inputs that were given and have one, each in the dtype of its input.

        Raises
        ------
        TypeError
            All cotangents are None, or there are not as many as results.
        """
        given = [x for x in cotangents if x is not None]
        if not given or len(cotangents) != len(kept.results):
            expected = f"{len(kept.results)} cotangents, not all of them None"
            raise type_error(self._forward.name, "cotangents", expected, f"{len(given)} arrays")
        library = library_of(given[0])
        device, known = library.device_of(given[0]), dict(kept.arrays)
        # A result that an option asks for comes behind those that there are always.
        for (name, dual), x, shape in zip(
            self.cotangents.items(), cotangents, kept.results, strict=False
        ):
            where = {"dtype": kept.dtypes[name], "device": device}
            known[dual] = library.xp.zeros(shape, **where) if x is None else x
        arrays = [known.get(name) for name in self._backward.arrays]
        while arrays[-1] is None:
            arrays.pop()
        found = self.op(*arrays, **kept.options)
        results = found if isinstance(found, tuple) else (found,)
        names = zip(self._backward.arrays, arrays, strict=False)
        there = {name for name, x in names if x is not None}
        form = next(f for f in self._backward.forms(kept.options) if f.takes(there))
        named = dict(zip([p.name for p in form.outputs], results, strict=True))
        named |= {dual: known[dual] for dual in self.cotangents.values() if dual in known}
        own = [(x, named[dx]) for x in kept.inputs if (dx := self.gradients.get(x)) in named]
        cast = library.xp.astype
        return {x: g if g.dtype == (d := kept.dtypes[x]) else cast(g, d) for x, g in own}


def pairing(forward: OpSpec, op: Callable[..., Any], backward: OpSpec) -> Pairing:
    """The pairing of an op with its gradient `op`, which `backward` declares."""
    results = list(dict.fromkeys(p.name for f in forward.signatures for p in f.outputs))
    made = {p.name for f in backward.signatures for p in f.outputs}
    cotangents = {name: f"d{name}" for name in results}
    gradients = {name: f"d{forward.role(name).alike or name}" for name in forward.arrays}
    patterns = {p.terms: p.name for f in forward.signatures for p in f.inputs}
    shapes = {
        p.name: patterns[p.terms] for f in backward.signatures for p in f.inputs if p.is_option
    }
    whose = {dx: name for name, dx in gradients.items()}
    dtypes = {role.chosen: whose[dx] for dx, role in backward.roles.items() if role.chosen}
    own = (*backward.options, *backward.scalars)
    return Pairing(
        op,
        forward.arrays,
        cotangents,
        tuple([name for name in backward.arrays if name not in cotangents.values()]),
        {name: dx for name, dx in gradients.items() if dx in {*made, *cotangents.values()}},
        tuple([name for name in own if name not in shapes and name not in dtypes]),
        shapes,
        dtypes,
        forward,
        backward,
    )
