"""The record of what a plan runs and what it guarantees."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from baracuda.declaration.dtypes import named


@dataclass(frozen=True, slots=True)
class PrecisionGuarantee:
    """How exactly, and how repeatably, a plan computes.

    Attributes
    ----------
    math : str
        dtype of the arithmetic.
    accumulator : str
        dtype in which sums are kept.
    deterministic : bool
        The same inputs give the same bits on every run of this plan.
    bit_stable : bool
        The same holds for every launch configuration that the library may choose on this arch.
    """

    math: str
    accumulator: str
    deterministic: bool
    bit_stable: bool


@dataclass(frozen=True, slots=True)
class KernelSku:
    """One recorded choice, assembled from the very values that run.

    Attributes
    ----------
    category, op : str
        Family and name of the op.
    dtype : str
        dtype of the primal.
    index_dtype : str or None
        dtype of the index or position array, where there is one.
    layout : str
        Of the inputs: ``contiguous``, ``dense`` (permuted) or ``strided``.
    backend, arch : str
        Who computes, and on what.
    kernel, variant : str
        Which routine, in which form (blocks, threads, vector width).
    version : str
        baracuda's version.
    precision : PrecisionGuarantee
    code : str
        Where the kernels' machine code is from: a wheel of kernels with its version, or NVRTC with
        its own; "" where no kernel of ours runs. SKUs that differ in this alone are equal.
    """

    category: str
    op: str
    dtype: str
    index_dtype: str | None
    layout: str
    backend: str
    arch: str
    kernel: str
    variant: str
    version: str
    precision: PrecisionGuarantee
    code: str = field(default="", compare=False)

    def __str__(self) -> str:
        types = named(self.dtype).short
        if self.index_dtype:
            types += f"/{named(self.index_dtype).short}"
        variant = f" {self.variant}" if self.variant else ""
        stable = (
            "bit-stable"
            if self.precision.bit_stable
            else ("deterministic" if self.precision.deterministic else "non-deterministic")
        )
        return (
            f"{self.op}[{types} {self.layout} {self.backend} {self.arch} {self.kernel}{variant}]"
            f" acc {named(self.precision.accumulator).short}, {stable}"
        )

    def to_json(self) -> str:
        """The SKU as a JSON object."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | Mapping[str, Any]) -> KernelSku:
        """Read a SKU back from `to_json`'s text, or from the object it holds.

        Raises
        ------
        ValueError
            Where the text is not JSON, or a field is missing, unknown or of the wrong type.
        """
        try:
            record = dict(json.loads(text) if isinstance(text, str) else text)
            record["precision"] = PrecisionGuarantee(**record["precision"])
            sku = cls(**record)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"KernelSku: not a SKU record: {error}") from None
        for name in (one.name for one in fields(cls)):
            value = getattr(sku, name)
            optional = name == "index_dtype" and value is None
            if name != "precision" and not optional and not isinstance(value, str):
                raise ValueError(f"KernelSku: {name}: expected a string, got {value!r}")
        return sku
