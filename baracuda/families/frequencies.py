"""Frequencies of scaled ropes, by the rules of the models that use them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from baracuda.declaration.spec import Normaliser
from baracuda.declaration.values import counting, flag, numbers, optional, positive
from baracuda.errors import ArgumentTypeError, value_error

_NAME = "rope_frequencies"


class _Powers(NamedTuple):
    """The frequencies of a base that is not scaled, in float64."""

    frequencies: np.ndarray
    dim: int
    base: float


def _powers(dim: int, base: float) -> _Powers:
    return _Powers(float(base) ** -(np.arange(0, dim, 2) / max(dim, 1)), dim, base)


Scaled: TypeAlias = tuple[np.ndarray, float]


def _default(own: _Powers) -> Scaled:
    return own.frequencies, 1.0


def _linear(own: _Powers, *, factor: float) -> Scaled:
    return own.frequencies / factor, 1.0


def _dynamic(
    own: _Powers, *, factor: float, max_position_embeddings: int, seq_len: int | None = None
) -> Scaled:
    length = max(seq_len or 0, max_position_embeddings)
    longer = factor * length / max_position_embeddings - (factor - 1)
    power = own.dim / max(own.dim - 2, 1)
    return _powers(own.dim, own.base * longer**power).frequencies, 1.0


def _yarn(
    own: _Powers, *, factor: float, original_max_position_embeddings: int,
    beta_fast: float | None = None, beta_slow: float | None = None, truncate: bool = True,
    mscale: float | None = None, mscale_all_dim: float | None = None,
    attention_factor: float | None = None,
) -> Scaled:  # fmt: skip
    frequencies, dim, base = own

    def pair(turns: float) -> float:
        """The pair that turns so often in the original length."""
        each = original_max_position_embeddings / (turns * 2 * math.pi)
        return dim * math.log(each) / (2 * math.log(base))

    def grown(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    low, high = pair(beta_fast or 32.0), pair(beta_slow or 1.0)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low or 0.001), 0, 1)
    both = bool(mscale and mscale_all_dim)
    usual = grown(mscale or 1) / grown(mscale_all_dim or 1) if both else grown(1)
    return frequencies * (1 - ramp) + frequencies / factor * ramp, attention_factor or usual


def _llama3(
    own: _Powers, *, factor: float, original_max_position_embeddings: int,
    low_freq_factor: float = 1.0, high_freq_factor: float = 4.0,
) -> Scaled:  # fmt: skip
    frequencies = own.frequencies
    turns = original_max_position_embeddings * frequencies / (2 * math.pi)
    # From the slow pairs, which are scaled, to the fast ones, which are not.
    gap = high_freq_factor - low_freq_factor or 1e-9
    smooth = np.clip((turns - low_freq_factor) / gap, 0, 1)
    return (1 - smooth) * frequencies / factor + smooth * frequencies, 1.0


def _longrope(
    own: _Powers, *, factor: float, short_factor: tuple[float, ...],
    long_factor: tuple[float, ...], original_max_position_embeddings: int,
    seq_len: int | None = None, attention_factor: float | None = None,
) -> Scaled:  # fmt: skip
    original, usual = original_max_position_embeddings, 1.0
    for name, given in (("short_factor", short_factor), ("long_factor", long_factor)):
        if len(given) != own.dim // 2:
            raise value_error(_NAME, name, f"{own.dim // 2} numbers", f"{len(given)} of them")
    each = long_factor if (seq_len or 0) > original else short_factor
    if factor > 1:
        usual = math.sqrt(1 + math.log(factor) / math.log(original))
    return own.frequencies / np.asarray(each), attention_factor or usual


def _proportional(
    own: _Powers, *, factor: float = 1.0, partial_rotary_factor: float = 1.0
) -> Scaled:
    turning = np.arange(own.dim // 2) < int(partial_rotary_factor * own.dim // 2)
    return np.where(turning, own.frequencies / factor, 0), 1.0


Rule: TypeAlias = Literal[
    "default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional"
]
_RULES: Mapping[str, Callable[..., Scaled]] = {
    "default": _default, "linear": _linear, "dynamic": _dynamic, "yarn": _yarn,
    "llama3": _llama3, "longrope": _longrope, "proportional": _proportional,
}  # fmt: skip
_READ: Mapping[str, Normaliser] = {
    "truncate": flag, "short_factor": numbers, "long_factor": numbers,
    "original_max_position_embeddings": counting, "max_position_embeddings": counting,
    "seq_len": optional(counting),
}  # fmt: skip
_NUMBER = optional(positive())


def rope_frequencies(
    rule: Rule, dim: int, base: float = 10000.0, **parameters: Any
) -> tuple[np.ndarray, float]:
    """The frequencies and the attention factor of a scaled rope.

    They are what `rope` and `rope_qk` take as ``frequencies`` and ``attention_factor``.

    Parameters
    ----------
    rule : str
        "default": the powers of `base`. "linear": divided by ``factor``. "dynamic": those of a base
        that grows with ``seq_len`` (NTK). "yarn": slow pairs are divided, fast ones are not.
        "llama3": the same by other bounds. "longrope": each pair is divided by a number of its own.
        "proportional": pairs behind a part of them do not turn.
    dim : int
        How many entries of a head turn, which is even: the head's times the rotary factor.
        Of "proportional" the whole head.
    base : float
        ``rope_theta`` of a configuration of transformers.
    **parameters
        The others of its ``rope_parameters``, by their names there. "linear": factor. "dynamic":
        factor, max_position_embeddings, seq_len. "yarn": factor, original_max_position_embeddings,
        beta_fast, beta_slow, truncate, mscale, mscale_all_dim, attention_factor. "llama3": factor,
        original_max_position_embeddings, low_freq_factor, high_freq_factor. "longrope": factor,
        short_factor, long_factor, original_max_position_embeddings, seq_len, attention_factor;
        where a configuration has no factor, its max_position_embeddings divided by the original
        ones. "proportional": factor, partial_rotary_factor.

    Returns
    -------
    frequencies : numpy.ndarray of shape [dim/2]
        float32: the angle of each pair from one position to the next.
    attention_factor : float
        What cosines and sines are multiplied by.

    Raises
    ------
    TypeError
        A parameter that the rule does not take, or one that it needs is missing.
    ValueError
        Another rule; `dim` odd or not positive; a parameter that is not positive or finite.

    Notes
    -----
    Chen et al. (arXiv:2306.15595), Peng et al. (arXiv:2309.00071), Ding et al. (arXiv:2402.13753)
    and ``ROPE_INIT_FUNCTIONS`` of transformers. They are computed in float64 and rounded once;
    transformers computes in float32, and is up to 2e-6 away. Deterministic.

    Examples
    --------
    >>> import baracuda as bc
    >>> frequencies, factor = bc.rope_frequencies(
    ...     "llama3", 8, 500000.0, factor=8.0, original_max_position_embeddings=8192
    ... )
    >>> frequencies.round(6).tolist(), factor
    ([1.0, 0.03760599970817566, 0.0005239999736659229, 7.000000096013537e-06], 1.0)
    """
    if rule not in _RULES:
        raise value_error(_NAME, "rule", f"one of {', '.join(_RULES)}", repr(rule))
    dim, base = counting(_NAME, "dim", dim), positive()(_NAME, "base", base)
    if dim % 2:
        raise value_error(_NAME, "dim", "an even number", dim)
    takes = {p.name: p for p in list(signature(_RULES[rule]).parameters.values())[1:]}
    needs = {name for name, p in takes.items() if p.default is Parameter.empty}
    if not needs <= parameters.keys() <= takes.keys():
        raise ArgumentTypeError(
            f"{_NAME}: {rule} takes {', '.join(takes) or 'no parameters'} and needs "
            f"{', '.join(sorted(needs)) or 'none'}, got {', '.join(sorted(parameters)) or 'none'}"
        )
    own = {name: _READ.get(name, _NUMBER)(_NAME, name, x) for name, x in parameters.items()}
    frequencies, attention_factor = _RULES[rule](_powers(dim, base), **own)
    return frequencies.astype(np.float32), float(attention_factor)
