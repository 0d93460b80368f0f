"""dtype names, and what the library needs to know of each: size, accumulate type, CUDA spelling."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeAlias

import numpy as np

DTypeLike: TypeAlias = Any
"""A dtype as an option takes it: the name, or an object of any library."""

Kind = Literal["float", "int", "uint", "bool", "complex"]


@dataclass(frozen=True, slots=True)
class DType:
    """One dtype: its array-API name and the facts that kernels and tests derive from it."""

    name: str
    short: str
    kind: Kind
    itemsize: int
    cuda: str
    accumulate: str
    eps: float = 0.0


_TABLE = {
    d.name: d
    for d in (
        DType("float16", "f16", "float", 2, "__half", "float32", 2.0**-10),
        DType("bfloat16", "bf16", "float", 2, "__nv_bfloat16", "float32", 2.0**-7),
        DType("float32", "f32", "float", 4, "float", "float32", 2.0**-23),
        DType("float64", "f64", "float", 8, "double", "float64", 2.0**-52),
        DType("int8", "i8", "int", 1, "signed char", "int8"),
        DType("int16", "i16", "int", 2, "short", "int16"),
        DType("int32", "i32", "int", 4, "int", "int32"),
        DType("int64", "i64", "int", 8, "long long", "int64"),
        DType("uint8", "u8", "uint", 1, "unsigned char", "uint8"),
        DType("uint16", "u16", "uint", 2, "unsigned short", "uint16"),
        DType("uint32", "u32", "uint", 4, "unsigned int", "uint32"),
        DType("uint64", "u64", "uint", 8, "unsigned long long", "uint64"),
        DType("bool", "bool", "bool", 1, "bool", "bool"),
        DType("complex64", "c64", "complex", 8, "float2", "complex64", 2.0**-23),
        DType("complex128", "c128", "complex", 16, "double2", "complex128", 2.0**-52),
    )
}

FLOATS = ("float32", "float64", "float16", "bfloat16")
INDICES = ("int32", "int64")
ANY = tuple(_TABLE)


def named(name: str) -> DType:
    """The dtype called `name` in the array API's spelling."""
    return _TABLE[name]


def name_of(dtype: Any) -> str:
    """The array-API name of any library's dtype object.

    Every library prints its dtypes as the name, some behind the module's. A NumPy dtype of the
    other byte order prints otherwise (``>f4``) and keeps that spelling, which no op accepts.
    """
    return str(dtype).rpartition(".")[2]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype object called `name`; CuPy has the same ones.

    Raises
    ------
    TypeError
        For bfloat16, which is that of ml-dtypes, where that is not installed.
    """
    if name != "bfloat16":
        return np.dtype(name)
    try:
        bfloat16: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
        return bfloat16
    except ImportError:
        raise TypeError("bfloat16 needs ml-dtypes: pip install 'baracuda[bf16]'") from None
