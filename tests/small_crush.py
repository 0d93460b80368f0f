"""SmallCrush of L'Ecuyer and Simard's TestU01 on the random words, where the library is installed.

`PYTHONPATH=. python tests/small_crush.py` runs it on words of successive elements, and on those of
one element under successive seeds and under successive offsets; each also with its bits in reverse
order, as the battery looks at the high ones. It prints how many words were drawn, and the least and
the largest p-value, after ten minutes of one core. Debian has the library in `non-free`, as
libtestu01-0: it is not for commercial use.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from baracuda.families import philox

Words = NDArray[np.int64]
# So many words are drawn at a time.
_PART = 1 << 18
SEED, OFFSET = 20_011, 5


def elements(part: int) -> Words:
    """Of arrays of 2^18 elements, one offset after the other, as training steps draw them."""
    return philox.words_of((_PART,), SEED, OFFSET + part, np.empty(0), whole=True)


def _numbers(part: int) -> tuple[Words, Words]:
    number = np.arange(part * _PART, (part + 1) * _PART)
    return number & 0xFFFFFFFF, number >> 32


def seeds(part: int) -> Words:
    return philox.philox((0, 0, *philox.words(OFFSET)), _numbers(part))[0]


def offsets(part: int) -> Words:
    return philox.philox((0, 0, *_numbers(part)), philox.words(SEED))[0]


STREAMS: dict[str, Callable[[int], Words]] = {
    "elements": elements, "seeds": seeds, "offsets": offsets,
}  # fmt: skip


def turned(word: Words) -> Words:
    """The bits in reverse order."""
    for step in (16, 8, 4, 2, 1):
        mask = 0xFFFFFFFF // (2**step + 1)
        word = (word >> step & mask) | (word & mask) << step
    return word


def small_crush(library: ctypes.CDLL, parts: Iterator[Words]) -> tuple[int, list[float]]:
    """How many words were drawn, and all p-values."""
    drawn = 0

    def every() -> Iterator[int]:
        nonlocal drawn
        for part in parts:
            drawn += part.size
            yield from part.tolist()

    library.unif01_CreateExternGenBits.restype = ctypes.c_void_p
    ctypes.c_byte.in_dll(library, "swrite_Basic").value = 0
    draw = ctypes.CFUNCTYPE(ctypes.c_uint32)(every().__next__)
    generator = ctypes.c_void_p(library.unif01_CreateExternGenBits(b"words", draw))
    library.bbattery_SmallCrush(generator)
    library.unif01_DeleteExternGenBits(generator)
    many = ctypes.c_int.in_dll(library, "bbattery_NTests").value
    return drawn, list((ctypes.c_double * many).in_dll(library, "bbattery_pVal"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default="libtestu01.so.0", help="where TestU01 lies")
    library = ctypes.CDLL(parser.parse_args().library)
    for name, stream in STREAMS.items():
        for how, form in (("", lambda word: word), (", reversed", turned)):
            drawn, found = small_crush(library, map(form, map(stream, count())))
            print(f"{name}{how}: 2^{np.log2(drawn):.1f} words, {len(found)} p-values from "
                  f"{min(found):.3g} to {max(found):.3g}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
