"""Optimisers for torch: beside torch's own in float64, with its checkpoints and scalers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import baracuda as bc

SHAPES = ((5, 7), (3,), (), (2, 0))
STEPS = 100
MOMENTUM = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {"lr": 0.02, "weight_decay": 0.1}),
    "adamw-maximize": ("AdamW", {"lr": 0.02, "betas": (0.8, 0.95), "maximize": True}),
    "adamw-capturable": ("AdamW", {"lr": 0.02, "capturable": True}),
    "sgd": ("SGD", {"lr": 0.05, "weight_decay": 0.1}),
    "momentum": ("SGD", {**MOMENTUM, "dampening": 0.3}),
    "nesterov": ("SGD", {**MOMENTUM, "nesterov": True, "maximize": True}),
}


def parameters(dtype: torch.dtype = torch.float64) -> list[torch.nn.Parameter]:
    torch.manual_seed(1)
    return [torch.nn.Parameter(torch.randn(s, dtype=dtype)) for s in SHAPES]


def give(params: list[torch.nn.Parameter], step: int, every: int = 3) -> None:
    """Gradients of a step; the second parameter has none in some."""
    torch.manual_seed(100 + step)
    for i, p in enumerate(params):
        p.grad = torch.randn(p.shape, dtype=p.dtype)
        if i == 1 and step % every == 0:
            p.grad = None


def both(name: str) -> tuple[Any, Any, Any, Any]:
    kind, options = CASES[name]
    mine, theirs = parameters(), parameters()
    # torch itself takes capturable steps on devices alone.
    plain = {k: v for k, v in options.items() if k != "capturable"}
    own, other = getattr(bc.optim, kind), getattr(torch.optim, kind)
    groups = [[{"params": x[:2]}, {"params": x[2:], "lr": 0.01}] for x in (mine, theirs)]
    return mine, theirs, own(groups[0], **options), other(groups[1], foreach=False, **plain)


def same(mine: Any, theirs: Any) -> None:
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x.detach(), y.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_hundred_steps_are_those_of_torch(name: str) -> None:
    mine, theirs, own, other = both(name)
    every = 1000 if "capturable" in name else 3
    for step in range(1, STEPS + 1):
        give(mine, step, every)
        give(theirs, step, every)
        own.step()
        other.step()
    same(mine, theirs)
    assert all(p in own.state for p in mine) or name == "sgd"


@pytest.mark.parametrize("name", ["adamw", "momentum"])
def test_states_are_interchangeable(name: str) -> None:
    mine, theirs, own, other = both(name)
    for step in range(1, 13):
        give(mine, step)
        give(theirs, step)
        own.step()
        other.step()
        if step % 3 == 0:
            states = copy.deepcopy(own.state_dict()), copy.deepcopy(other.state_dict())
            assert states[0]["state"].keys() == states[1]["state"].keys()
            assert states[0]["state"][0].keys() == states[1]["state"][0].keys()
            own.load_state_dict(states[1])
            other.load_state_dict(states[0])
    same(mine, theirs)
    again = pickle.loads(pickle.dumps(own))
    assert type(again) is type(own)
    assert again.state_dict()["param_groups"] == own.state_dict()["param_groups"]


@pytest.mark.parametrize("name", ["adamw", "adamw-capturable", "momentum"])
def test_states_that_others_replace_are_taken(name: str) -> None:
    mine, theirs, own, other = both(name)

    def steps(first: int, last: int, every: int = 3) -> None:
        for step in range(first, last):
            for params, optimizer in ((mine, own), (theirs, other)):
                give(params, step, every)
                optimizer.step()

    steps(1, 5, 1000 if "capturable" in name else 3)
    for params, optimizer in ((mine, own), (theirs, other)):
        # Begin again with the first, set another's number back, and exchange a state's array.
        optimizer.state.pop(params[0])
        if name != "momentum":
            optimizer.state[params[2]]["step"] = torch.tensor(1.0, dtype=torch.float64)
        key = "momentum_buffer" if name == "momentum" else "exp_avg"
        optimizer.state[params[1]][key] = torch.ones(3, dtype=torch.float64)
        params[1].data = params[1].data * 2
    steps(5, 9, 1000 if "capturable" in name else 3)
    for params, optimizer in ((mine, own), (theirs, other)):
        more = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
        params.append(more)
        optimizer.add_param_group({"params": [more], "lr": 0.1})
    steps(9, 12, 1000 if "capturable" in name else 3)
    same(mine, theirs)


def test_numbers_of_steps_are_tensors_of_their_own() -> None:
    mine, theirs, own, other = both("adamw")
    for step in range(1, 5):
        for params, optimizer in ((mine, own), (theirs, other)):
            give(params, step, 2)
            optimizer.step()
    for p, q in zip(mine, theirs, strict=True):
        assert torch.equal(own.state[p]["step"], other.state[q]["step"])
    own.state[mine[0]]["step"].add_(5)
    assert own.state[mine[2]]["step"] == 4


def test_lion_steps_along_the_sign() -> None:
    p = torch.nn.Parameter(torch.randn(40, dtype=torch.float64))
    theta, m = p.detach().clone(), torch.zeros(40, dtype=torch.float64)
    optimizer = bc.optim.Lion([p], lr=0.01, weight_decay=0.2)
    for step in range(STEPS):
        torch.manual_seed(step)
        p.grad = torch.randn(40, dtype=torch.float64)
        # Algorithm 2 of arXiv:2302.06675.
        theta = theta - 0.01 * (torch.sign(0.9 * m + 0.1 * p.grad) + 0.2 * theta)
        m = 0.99 * m + 0.01 * p.grad
        optimizer.step()
    same([p], [theta])


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Lion"])
def test_a_scaler_leaves_its_factor_to_the_step(kind: str) -> None:
    plain, scaled = parameters(torch.float32), parameters(torch.float32)
    options = {"momentum": 0.9} if kind == "SGD" else {}
    one, other = (getattr(bc.optim, kind)(p, lr=0.1, **options) for p in (plain, scaled))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.zeros(()))
    for step in (1, 2, 4):
        give(plain, step)
        one.step()
        give(scaled, step)
        for p in scaled:
            if p.grad is not None:
                p.grad *= scaler.get_scale()
        scaler.step(other)
        scaler.update()
    for x, y in zip(plain, scaled, strict=True):
        torch.testing.assert_close(x, y)
    # An infinite gradient anywhere: nothing moves, and no step is counted.
    give(scaled, 5)
    scaled[0].grad[0, 0] = torch.inf
    before = copy.deepcopy([p.detach() for p in scaled])
    states = copy.deepcopy(other.state_dict()["state"])
    scaler.step(other)
    scaler.update()
    assert scaler.get_scale() == 512.0
    same(scaled, before)
    torch.testing.assert_close(other.state_dict()["state"], states)


def test_numbers_may_be_tensors_and_closures_are_called() -> None:
    mine, theirs = parameters(), parameters()
    lr = torch.tensor(0.1, dtype=torch.float64)
    own, other = bc.optim.AdamW(mine, lr=lr), torch.optim.AdamW(theirs, lr=0.1)
    give(mine, 1)
    give(theirs, 1)
    assert own.step(lambda: 7.0) == 7.0
    other.step()
    same(mine, theirs)
    own.zero_grad()
    assert all(p.grad is None for p in mine)
    give(mine, 2)
    own.zero_grad(set_to_none=False)
    assert not mine[0].grad.any()


def test_bfloat16_keeps_its_dtype() -> None:
    params = parameters(torch.bfloat16)
    optimizer = bc.optim.AdamW(params, lr=0.1)
    give(params, 1)
    optimizer.step()
    assert {params[0].dtype, optimizer.state[params[0]]["exp_avg"].dtype} == {torch.bfloat16}
    version = params[0]._version
    optimizer.step()
    assert params[0]._version > version


WIDE = {"AdamW": {"lr": 0.02}, "SGD": {"lr": 0.02, "momentum": 0.9}, "Lion": {"lr": 0.01}}


def short() -> list[torch.nn.Parameter]:
    """Parameters of bfloat16, and one of float32."""
    return [*parameters(torch.bfloat16), torch.nn.Parameter(torch.ones(4))]


@pytest.mark.parametrize("kind", WIDE)
def test_master_weights_move_as_parameters_of_float32_do(kind: str) -> None:
    params, wide = short(), [torch.nn.Parameter(p.detach().float()) for p in short()]
    own = getattr(bc.optim, kind)(params, master_weights=True, **WIDE[kind])
    has = hasattr(torch.optim, kind)
    other = getattr(torch.optim if has else bc.optim, kind)(wide, **WIDE[kind])
    for step in range(1, 21):
        give(params, step)
        for p, q in zip(params, wide, strict=True):
            q.grad = None if p.grad is None else p.grad.float()
        own.step()
        other.step()
    for p, q in zip(params[:4], wide, strict=False):
        state = own.state[p]
        assert {x.dtype for n, x in state.items()} == {torch.float32}
        torch.testing.assert_close(state["master_param"], q.detach(), rtol=1e-5, atol=1e-6)
        assert torch.equal(p.detach(), state["master_param"].bfloat16())
    assert "master_param" not in own.state[params[4]]
    torch.testing.assert_close(params[4], wide[4], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", WIDE)
@pytest.mark.parametrize("options", [{"state_dtype": torch.float32}, {"master_weights": True}])
def test_float32_states_are_not_rounded_by_checkpoints(kind: str, options: Any) -> None:
    def steps(own: Any, params: Any, first: int) -> None:
        for step in range(first, first + 3):
            give(params, step)
            own.step()

    params = short()
    own = getattr(bc.optim, kind)(params, **options, **WIDE[kind])
    steps(own, params, 1)
    saved = copy.deepcopy(own.state_dict())
    others = [torch.nn.Parameter(p.detach().clone()) for p in params]
    again = getattr(bc.optim, kind)(others, **options, **WIDE[kind])
    again.load_state_dict(saved)
    assert pickle.loads(pickle.dumps(again)).defaults.items() >= own.defaults.items()
    for optimizer, some in ((own, params), (again, others)):
        steps(optimizer, some, 4)
    same(params, others)
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(own.state[p], again.state[q], rtol=0, atol=0)
        states = {n: x.dtype for n, x in own.state[p].items()}
        assert {*states.values()} == {torch.float32}
    if kind == "Lion":
        return
    # What torch has stepped since has left its master copy behind.
    theirs = getattr(torch.optim, kind)(others, **WIDE[kind])
    theirs.load_state_dict(again.state_dict())
    steps(theirs, others, 7)
    back = getattr(bc.optim, kind)(others, **options, **WIDE[kind])
    back.load_state_dict(theirs.state_dict())
    before = [p.detach().clone() for p in others]
    without = copy.deepcopy(theirs.state_dict())
    for row in without["state"].values():
        row.pop("master_param", None)
    fresh = [torch.nn.Parameter(p.clone()) for p in before]
    new = getattr(bc.optim, kind)(fresh, **options, **WIDE[kind])
    new.load_state_dict(without)
    steps(new, fresh, 10)
    steps(back, others, 10)
    same(others, fresh)
    for p, q in zip(others[:1], before, strict=False):
        if "master_weights" in options:
            assert torch.equal(p.detach(), back.state[p]["master_param"].to(p.dtype))
        torch.testing.assert_close(p.detach(), q, rtol=0.5, atol=0.5)
        assert not torch.equal(p.detach(), q)
        assert {x.dtype for x in back.state[p].values()} == {torch.float32}


@pytest.mark.parametrize("flat", [False, True])
def test_master_copies_come_back_whatever_is_loaded_first(flat: bool) -> None:
    # torch's distributed checkpoints load the optimiser, then the model.
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_state_dict,
        set_state_dict,
    )

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Linear(3, 3).bfloat16()
        return model, bc.optim.AdamW(model.parameters(), lr=1e-4, master_weights=True)

    def steps(model: torch.nn.Module, own: torch.optim.Optimizer) -> list[torch.Tensor]:
        for _ in range(3):
            own.zero_grad()
            model(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
            own.step()
        return [own.state[p]["master_param"].clone() for p in model.parameters()]

    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model, own = made()
    saved = [x.clone() for x in steps(model, own)]
    own.zero_grad()
    of_model, of_own = copy.deepcopy(get_state_dict(model, own, options=options))
    other, again = made()
    set_state_dict(
        other, again, model_state_dict=of_model, optim_state_dict=of_own, options=options
    )
    loaded = [again.state[p]["master_param"] for p in other.parameters()]
    same(loaded, saved)
    same(steps(other, again), steps(model, own))


def test_what_is_of_the_whole_optimiser_is_in_no_group() -> None:
    p, q, r = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    groups = [{"params": [p], "lr": 0.5}, {"params": [q], "master_weights": True}]
    own = bc.optim.AdamW(groups, lr=0.1, master_weights=True)
    own.add_param_group({"params": [r]})
    first, *others = own.param_groups
    assert all(first.keys() == group.keys() for group in others)
    assert "master_weights" not in first
    for options in ({"master_weights": False}, {"state_dtype": torch.float32}, {"seed": 1}):
        with pytest.raises(ValueError, match=f"AdamW: {next(iter(options))}: expected "):
            own.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], **options})


def test_a_rate_may_be_a_tensor_of_16_bits() -> None:
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    bc.optim.SGD([p], lr=torch.tensor(0.5, dtype=torch.bfloat16)).step()
    torch.testing.assert_close(p.detach(), torch.full((2,), 0.5))


def test_what_steps_do_not_do_is_refused() -> None:
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    with pytest.raises(NotImplementedError, match="AdamW: amsgrad: expected False, got True"):
        bc.optim.AdamW([p], amsgrad=True).step()
    with pytest.raises(ValueError, match="AdamW: state_dtype: expected torch"):
        bc.optim.AdamW([p], state_dtype=torch.float16)
    p.grad = torch.ones(2).to_sparse()
    with pytest.raises(NotImplementedError, match="SGD: expected a dense gradient, got a sparse"):
        bc.optim.SGD([p]).step()


def test_sharded_parameters_move_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import Partial, Shard, distribute_tensor, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        pytest.skip("a process group is there already")
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        whole = torch.randn(4, 3)
        p = torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None))
        part = torch.nn.Parameter(whole[:2].clone())
        p.grad = distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)], src_data_rank=None)
        part.grad = torch.ones(2, 3)
        for q in (p, part):
            bc.optim.AdamW([q], lr=0.1).step()
        torch.testing.assert_close(p.detach().to_local(), part.detach())
        assert Partial() not in p.placements
    finally:
        dist.destroy_process_group()
