"""An autograd engine of sixty lines, for any array library: the ops' own gradients, and a tape.

``Tape.call`` runs an op and remembers it; ``Tape.backward`` runs the gradients in reverse. All that
it knows of an op is ``op.adjoint`` (`baracuda.declaration.pairing.Pairing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baracuda.calls.op import Op
from baracuda.declaration.pairing import Kept, Pairing
from baracuda.errors import UnsupportedError
from baracuda.libraries import Array


class Tape:
    """Calls of ops, in order, of arrays of one library.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> tape, x, weight = Tape(), np.asarray([[3.0, 4.0]]), np.ones(2)
    >>> y = tape.call(bc.rms_norm, x, weight)
    >>> loss = tape.call(bc.mse_loss, y, np.zeros((1, 2)))
    >>> dx, dweight = tape.backward(loss, np.ones(()), [x, weight])
    >>> dweight.round(2)
    array([0.72, 1.28])
    """

    def __init__(self) -> None:
        # Arrays are known by their identity, so the tape holds them.
        self._calls: list[tuple[Pairing, Kept, Sequence[Any], tuple[Array, ...]]] = []

    def call(self, op: Op[Any, Any], *arrays: Array | None, **options: Any) -> Any:
        """Run an op, and remember what its gradient needs."""
        pair = op.adjoint
        if pair is None:
            raise UnsupportedError(f"{op.spec.name}: no op is its gradient")
        results = op(*arrays, **options)
        made = results if isinstance(results, tuple) else (results,)
        self._calls.append((pair, pair.keep(arrays, results, options), arrays, made))
        return results

    def backward(
        self, result: Array, cotangent: Array, inputs: Sequence[Array]
    ) -> list[Array | None]:
        """The gradients of the inputs; None where the result does not depend on one."""
        known = {id(result): cotangent}
        for pair, kept, arrays, results in reversed(self._calls):
            cotangents = [known.get(id(x)) for x in results]
            if all(x is None for x in cotangents):
                continue
            for name, gradient in pair.pull(kept, cotangents).items():
                x = arrays[pair.inputs.index(name)]
                known[id(x)] = known[id(x)] + gradient if id(x) in known else gradient
        return [known.get(id(x)) for x in inputs]
