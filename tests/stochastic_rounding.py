"""A program for any machine: how far the mean of many stochastic roundings is from the numbers.

`python tests/stochastic_rounding.py` prints, for 10^8 roundings to bfloat16 and float16, the mean
error in units of its standard deviation. `--count` takes another number of them.
"""

from __future__ import annotations

import argparse
import math

import torch

import baracuda as bc


def bias(kind: str, count: int, seed: int = 11, most: int = 1 << 22) -> float:
    """The sum of the errors in standard deviations, if each is right on average."""
    dtype, bits = getattr(torch, kind), 7 if kind == "bfloat16" else 10
    error = variance = 0.0
    generator = torch.Generator().manual_seed(seed)
    for offset in range(-(-count // most)):
        size = min(most, count - offset * most)
        # Of 1 to 2, where a last place is 2^-bits: by how much an error is off is then known.
        param = (1 + torch.rand(size, generator=generator)).to(dtype).clamp(1.25, 1.75)
        grad = torch.randn(size, generator=generator).to(dtype)
        exact = param.double() - 2.0**-bits / 8 * grad.double()
        new = bc.sgd(param, grad, lr=2.0**-bits / 8, stochastic_rounding=True, seed=seed,
                     offset=offset)  # fmt: skip
        error += float((new.double() - exact).sum())
        fraction = exact * 2.0**bits % 1
        variance += float((fraction * (1 - fraction)).sum()) * 4.0**-bits
    return error / math.sqrt(variance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10**8)
    count = parser.parse_args().count
    for kind in ("bfloat16", "float16"):
        print(f"{count} roundings to {kind}: {bias(kind, count):+.2f} sigma", flush=True)


if __name__ == "__main__":
    main()
