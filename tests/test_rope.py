"""Ropes by tables, and of q and k: transformers' own rotations, autograd, layouts, in place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import baracuda as bc

RNG = np.random.default_rng(0)
B, H, K, S, D = 2, 4, 2, 5, 8


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(RNG.normal(size=shape)).to(dtype)


def tables(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of [*shape, D/2] angles."""
    angles = normal(*shape, D // 2) * 100
    return angles.cos().to(dtype), angles.sin().to(dtype)


def twice(table: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """An entry for each element, as transformers has it."""
    return table.repeat_interleave(2, -1) if interleaved else torch.cat([table, table], -1)


def theirs(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotation of Llama, or that of Cohere, of tables [b, s, d]."""
    name = "cohere" if interleaved else "llama"
    module = pytest.importorskip(f"transformers.models.{name}.modeling_{name}")
    return module.apply_rotary_pos_emb(q, k, cos, sin)  # type: ignore[no-any-return]


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("entries", ["pairs", "elements"])
def test_tables_turn_as_transformers_does(interleaved: bool, entries: str) -> None:
    (cos, sin), x = tables(B, S), normal(B, H, S, D)
    x.requires_grad_()
    full = twice(cos, interleaved), twice(sin, interleaved)
    want, _ = theirs(x, x, *full, interleaved)
    dy = normal(B, H, S, D)
    (dx,) = torch.autograd.grad(want, x, dy)
    given = full if entries == "elements" else (cos, sin)
    own = [t[:, None] for t in given]
    got = bc.rope_with_tables(x, *own, interleaved=interleaved)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, x, dy)[0], dx)
    torch.testing.assert_close(bc.rope_with_tables_backward(dy, *own, interleaved=interleaved), dx)


def test_the_entry_of_the_first_element_of_a_pair_counts() -> None:
    x, spoiled = normal(3, D), torch.full((3, D), torch.nan, dtype=torch.float64)
    cos, sin = tables(3)
    for interleaved in (True, False):
        firsts = slice(0, None, 2) if interleaved else slice(0, D // 2)
        full = [spoiled.clone(), spoiled.clone()]
        for table, values in zip(full, (cos, sin), strict=True):
            table[:, firsts] = values
        got = bc.rope_with_tables(x, *full, interleaved=interleaved)
        assert torch.equal(got, bc.rope_with_tables(x, cos, sin, interleaved=interleaved))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float32_tables_are_not_rounded(dtype: torch.dtype) -> None:
    x, (cos, sin) = normal(H, S, D, dtype=dtype), tables(S, dtype=torch.float32)
    exact = bc.rope_with_tables(x.double(), cos.double(), sin.double())
    got = bc.rope_with_tables(x, cos, sin)
    assert got.dtype == dtype
    # One rounding of the result, beside those of float32.
    near = exact.to(torch.float32).to(dtype).double()
    error = (got.double() - exact).abs()
    assert (error <= (near - exact).abs() + 1e-5).all()
    rounded = bc.rope_with_tables(x, cos.to(dtype), sin.to(dtype))
    assert (rounded.double() - exact).abs().max() > error.max()


def test_positions_pick_rows_of_tables() -> None:
    (cos, sin), x = tables(9), normal(B, H, S, D)
    for positions in (torch.tensor([8, 0, 3, 3, 1]), torch.tensor(RNG.integers(0, 9, (B, 1, S)))):
        got = bc.rope_with_tables(x, cos, sin, positions)
        at = [t[positions] if positions.ndim > 1 else t[positions][None, None] for t in (cos, sin)]
        assert torch.equal(got, bc.rope_with_tables(x, *at))
    with pytest.raises(IndexError, match=r"positions: expected 0 <= i < 9, got 9 at position \(1,"):
        bc.rope_with_tables(x, cos, sin, torch.tensor([0, 9, -1, 2, 3]))
    got = bc.rope_with_tables(x, cos, sin, torch.tensor([0, 9, -1, 2, 3]), mode="drop")
    assert not got[:, :, 1:3].any()
    assert got[:, :, [0, 3, 4]].any(-1).all()


def test_what_is_not_rotated_passes_through_where_there_is_no_row() -> None:
    x, (cos, sin) = normal(S, D), tables(2)
    got = bc.rope_with_tables(
        x, cos[:, :2], sin[:, :2], torch.tensor([0, 1, 2, 1, 5]), rotary_dim=4, mode="drop"
    )
    assert torch.equal(got[:, 4:], x[:, 4:])
    assert not got[[2, 4], :4].any()


def test_the_gradient_along_tables_is_that_of_the_formula() -> None:
    """There is no kernel for it; the body is differentiated, and nothing is silently 0."""
    x, (cos, sin), dy = normal(B, S, D), tables(S), normal(B, S, D)
    leaves = [t.clone().requires_grad_() for t in (x, cos, sin)]
    want = torch.autograd.grad(
        theirs(leaves[0][:, None], leaves[0][:, None], *[
            twice(t, False)[None] for t in leaves[1:]], False)[0][:, 0], leaves, dy)  # fmt: skip
    got = torch.autograd.grad(bc.rope_with_tables(*leaves, interleaved=False), leaves, dy)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    jaxed = [jnp.asarray(t.numpy(), jnp.float32) for t in (x, cos, sin)]
    grads = jax.grad(
        lambda *a: (bc.rope_with_tables(*a, interleaved=False) * dy.numpy()).sum(), (0, 1, 2)
    )(*jaxed)
    for a, b in zip(grads, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("op", ["rope", "rope_with_tables"])
def test_a_dense_layout_is_kept_and_a_plan_works_in_place(op: str) -> None:
    x = normal(B, S, H, D).transpose(1, 2)
    more: tuple[Any, ...] = tables(S) if op != "rope" else ()
    function = getattr(bc, op)
    want = function(x, *more)
    assert want.stride() == x.stride()
    plan = function.plan(x, *more)
    own = x.clone(memory_format=torch.preserve_format)
    assert plan(own, *more, out=own) is own
    assert torch.equal(own, want)


def test_a_table_is_not_written_to() -> None:
    x, (cos, sin) = normal(S, D), (normal(S, D), normal(S, D))
    plan = bc.rope_with_tables.plan(x, cos, sin)
    for _ in range(2):
        with pytest.raises(ValueError, match="memory apart from cos, got an overlap"):
            plan(x, cos, sin, out=cos)
        plan(x, cos, sin, out=x)


@pytest.mark.parametrize(
    ("shapes", "options", "expected"),
    [
        (((3, D), (3, 3), (3, 3)), {}, "cos: expected 4 or 8 entries"),
        (((3, D), (3, 3), (3, 3)), {"rotary_dim": 4}, "cos: expected 2 or 4 entries"),
        (((2, 3, D), (4, 4), (4, 4)), {}, "cos: expected 3 along axis 0"),
        (((2, 3, D), (3, 4), (3, 8)), {}, "sin: expected 4 along axis 1"),
        (((2, 3, D), (1, 3, 4), (3, 4)), {}, "sin: expected 3 axes"),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    shapes: tuple[tuple[int, ...], ...], options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        bc.rope_with_tables(*[normal(*shape) for shape in shapes], **options)


def test_dtypes_of_tables() -> None:
    x, (cos, sin) = normal(S, D, dtype=torch.float32), tables(S)
    with pytest.raises(TypeError, match="cos: expected float32"):
        bc.rope_with_tables(x, cos, sin)
    with pytest.raises(TypeError, match=r"sin: expected float32 \(as cos\)"):
        bc.rope_with_tables(x.half(), cos.float(), sin.half())


@pytest.mark.parametrize("interleaved", [True, False])
def test_queries_and_keys_turn_together_as_transformers_does(interleaved: bool) -> None:
    q, k, (cos, sin) = normal(B, H, S, D), normal(B, K, S, D), tables(B, S)
    leaves = [q.requires_grad_(), k.requires_grad_()]
    want = theirs(q, k, twice(cos, interleaved), twice(sin, interleaved), interleaved)
    cotangents = [normal(*x.shape) for x in want]
    grads = torch.autograd.grad(want, leaves, cotangents)
    more = cos[:, None], sin[:, None]
    got = bc.rope_qk_with_tables(q, k, *more, interleaved=interleaved)
    own = torch.autograd.grad(got, leaves, cotangents)
    explicit = bc.rope_qk_with_tables_backward(*cotangents, *more, interleaved=interleaved)
    for a, b, e, y, z in zip(own, grads, explicit, got, want, strict=True):
        torch.testing.assert_close(y, z)
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(e, b)


@pytest.mark.parametrize("tabled", [False, True])
def test_q_and_k_have_the_bits_and_layouts_of_single_calls(tabled: bool) -> None:
    q, k = normal(B, S, H, D).transpose(1, 2), normal(B, K, S, D)
    more: tuple[Any, ...] = (*tables(9), torch.tensor(RNG.integers(0, 9, (B, 1, S))))
    more = more if tabled else more[2:]
    both, alone = (bc.rope_qk_with_tables, bc.rope_with_tables) if tabled else (bc.rope_qk, bc.rope)
    found = both(q, k, *more, interleaved=False)
    for x, y in zip((q, k), found, strict=True):
        assert torch.equal(y, alone(x, *more, interleaved=False))
        assert y.stride() == x.stride()
    plan = both.plan(q, k, *more, interleaved=False)
    own = [x.clone(memory_format=torch.preserve_format) for x in (q, k)]
    for x, y in zip(plan(*own, *more, out=own), found, strict=True):
        assert torch.equal(x, y)


def test_results_change_no_places() -> None:
    """In one launch q may not be written over k before that is read."""
    q, k, other = normal(H, S, D), normal(H, S, D), normal(H, S, D)
    plan = bc.rope_qk.plan(q, k)
    for _ in range(2):
        with pytest.raises(ValueError, match="memory apart from k, got an overlap"):
            plan(q, k, out=(k, other))
        with pytest.raises(ValueError, match="memory apart from k, got an overlap"):
            plan(q, q, out=(q, other))
        plan(q, k, out=(q, k))


def test_keys_are_like_queries_but_for_their_heads() -> None:
    q, k = normal(B, H, S, D), normal(B, K, S, D)
    per_head = torch.zeros(B, H, S, dtype=torch.int64)
    with pytest.raises(ValueError, match="alike along every axis along which positions"):
        bc.rope_qk(q, k, per_head)
    with pytest.raises(ValueError, match="alike but along one axis, that of heads, got 2 and 1, 4"):
        bc.rope_qk(q, k[:1])
    with pytest.raises(ValueError, match="k: expected at most 4 along axis 1"):
        bc.rope_qk(q, normal(B, H + 1, S, D))
    assert torch.equal(bc.rope_qk(q, q, per_head)[1], bc.rope(q, per_head))


def test_jax_differentiates_and_batches_q_and_k() -> None:
    q, k = (jnp.asarray(normal(B, heads, S, D).numpy(), jnp.float32) for heads in (H, K))

    def loss(q: Any, k: Any, both: Any) -> Any:
        y, z = both(q, k)
        return (y**2 * y).sum() + (z**3).sum()

    def apart(q: Any, k: Any) -> Any:
        return bc.rope(q), bc.rope(k)

    for got, want in zip(
        jax.jit(jax.grad(lambda q, k: loss(q, k, bc.rope_qk), (0, 1)))(q, k),
        jax.grad(lambda q, k: loss(q, k, apart), (0, 1))(q, k),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    many = jax.vmap(bc.rope_qk)(jnp.stack([q, 2 * q]), jnp.stack([k, 2 * k]))
    for x, y in zip(many, bc.rope_qk(q, k), strict=True):
        np.testing.assert_allclose(x[1], 2 * y, rtol=1e-5, atol=1e-6)
