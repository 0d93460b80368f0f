"""A backend for NumPy arrays that takes two ops, as a package of its own would bring it."""

import os

import numpy as np

from baracuda.backends import Entry
from baracuda.declaration.backend import Prepared
from baracuda.declaration.sku import PrecisionGuarantee

ENTRY = Entry("outside_backend", libraries=("numpy",))

# What every result is multiplied by: other than 1, the backend is wrong.
FACTOR = float(os.environ.get("OUTSIDE_FACTOR", "1"))
ACTIVATIONS = {
    "glu": lambda b: 1 / (1 + np.exp(-b)),
    "reglu": lambda b: np.maximum(b, 0),
}


class OutsideBackend:
    """glu and reglu in float32 and float64, the second half being the gate."""

    name = "outside"

    def claims(self, spec, library):
        return ("float32", "float64") if spec.name in ACTIVATIONS else ()

    def check_errors(self):
        """Nothing is reported later."""

    def refuses(self, problem):
        if problem.spec.name not in ACTIVATIONS:
            return f"takes {' and '.join(ACTIVATIONS)} only"
        return "takes no gate before the values" if problem.options["gate_first"] else None

    def prepare(self, problem):
        act, axis, library = (
            ACTIVATIONS[problem.spec.name], problem.options["axis"], problem.library
        )  # fmt: skip
        (y,) = problem.outputs

        def run(arrays, outs, accumulate, scalars):
            x, gate = (*arrays, None)[:2]
            a, b = np.split(x, 2, axis) if gate is None else (x, gate)
            with np.errstate(all="ignore"):
                value = a * act(b) * np.asarray(FACTOR, b.dtype)
            out = outs[0] if outs else library.empty(y.shape, y.dtype, x, y.strides)
            library.assign(out, value, accumulate)
            return out

        exact = PrecisionGuarantee(y.dtype, y.dtype, True, True)
        return Prepared(run, "outside", "", "any", exact)


BACKEND = OutsideBackend()
