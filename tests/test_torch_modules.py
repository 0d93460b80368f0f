"""`baracuda.nn`: each module with torch's name computes what torch's does, on torch's own test
inputs, and lives as it does."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_lists import torchs

import baracuda as bc
import baracuda.nn as bn
from baracuda.nn.namesakes import Namesake
from baracuda.nn.replacement import NAMESAKES

EVERY = {theirs.__name__: theirs for theirs in NAMESAKES}
each_name = pytest.mark.parametrize("name", list(EVERY))
# torch warns of what its own test inputs do: sizes that broadcast, a mean of divergences.
torchs_warnings = pytest.mark.filterwarnings("ignore")

# Of torch's test inputs, by their descriptions, those on which torch's own forward runs.
WEIGHTED = {
    f"{size}_prob_target_weights_{reduction}"
    for size in ("2d", "3d", "4d", "higher_dim")
    for reduction in ("mean", "sum", "none")
}
TRACKED = {"tracking_stats", "no_batch_dim"}
OWN = {
    "BatchNorm1d": {"affine_simple_average", "zero_batch"},
    "BatchNorm2d": {"2d_simple_average", "zero_batch"},
    "BatchNorm3d": {"3d_simple_average", "zero_batch"},
    "InstanceNorm1d": TRACKED,
    "InstanceNorm2d": TRACKED,
    "InstanceNorm3d": TRACKED,
    "KLDivLoss": {"scalar_reduction_batchmean"},
    "CrossEntropyLoss": WEIGHTED,
    "Softmax": {"scalar"},
    "Softmin": {"scalar"},
    "LogSoftmax": {"multiparam_scalar"},
}
# Modules that torch's list lacks, and divergences of what is no NaN.
MORE: dict[str, list[tuple[dict[str, Any], tuple[int, ...]]]] = {
    "Hardsigmoid": [({}, (3, 4))],
    "TripletMarginLoss": [
        ({}, (5, 4)), ({"p": 1.0, "swap": True, "reduction": "none"}, (2, 3, 4)),
        ({"p": 0.0}, (5, 4)), ({"margin": 0.5, "reduction": "sum"}, (4,)),
    ],
    "KLDivLoss": [
        *(({"reduction": r}, (3, 4)) for r in ("mean", "sum", "none", "batchmean")),
        ({"reduction": "batchmean", "log_target": True}, (3, 4)),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def database() -> dict[type, Any]:
    """torch's list of modules and their test inputs, by class."""
    return {info.module_cls: info for info in torchs("common_modules", "module_db")}


def made(name: str, *arguments: Any, **named: Any) -> tuple[nn.Module, nn.Module]:
    """Ours and torch's, with the same state, in float64."""
    theirs = EVERY[name](*arguments, **named).double()
    for parameter in theirs.parameters():
        nn.init.uniform_(parameter, 0.2, 1.5)
    ours = NAMESAKES[type(theirs)](*arguments, **named).double()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def run(module: nn.Module, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The result, the gradients of the inputs and parameters, and the buffers afterwards."""
    floats = [isinstance(x, torch.Tensor) and x.is_floating_point() for x in arrays]
    given = [
        x.detach().clone().requires_grad_() if floating else x
        for x, floating in zip(arrays, floats, strict=True)
    ]
    y = module(*given)
    watched = [x for x, floating in zip(given, floats, strict=True) if floating]
    watched += list(module.parameters())
    slopes = torch.autograd.grad(y, watched, torch.cos(y.detach()), allow_unused=True)
    return y, slopes, [x.clone() for x in module.buffers()]


def agree(ours: nn.Module, theirs: nn.Module, *arrays: Any) -> bool:
    """Results, gradients and buffers agree; whether an op has computed them."""
    took = []
    if isinstance(ours, Namesake):
        computed = ours._computed

        def seen(*inputs: Any) -> Any:
            y = computed(*inputs)
            took.append(y is not None)
            return y

        ours._computed = seen  # type: ignore[method-assign]
    torch.testing.assert_close(run(ours, arrays), run(theirs, arrays), equal_nan=True)
    return not isinstance(ours, Namesake) or took == [True]


@pytest.mark.slow("the first imports torch's list of modules, and all that it imports")
@torchs_warnings
@each_name
def test_torchs_own_tests_of_the_module(name: str, database: dict[type, Any]) -> None:
    info, own, seen, count = database.get(EVERY[name]), set(), set(), 0
    for training in (True, False) if info is not None and info.train_and_eval_differ else (True,):
        torch.manual_seed(7)
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=torch.float64, requires_grad=True, training=training
        ) if info else ()  # fmt: skip
        for each in inputs:
            constructor, forward = each.constructor_input, each.forward_input
            ours, theirs = made(name, *constructor.args, **constructor.kwargs)
            arrays = [x.abs() if "LPPool" in name else x for x in forward.args]
            assert not forward.kwargs
            if not agree(ours.train(training), theirs.train(training), *arrays):
                own.add(each.desc)
            seen.add(each.desc)
            count += 1
    for options, shape in MORE.get(name, ()):
        ours, theirs = made(name, **options)
        drawn = [
            torch.rand(shape, dtype=torch.float64) for _ in range(3 if "Margin" in name else 2)
        ]
        assert agree(ours, theirs, *drawn[: 1 if name == "Hardsigmoid" else None]) is (
            options.get("p") != 0
        )
        count += 1
    assert count
    # Other versions of torch have fewer inputs.
    assert own == OWN.get(name, set()) & seen


@torchs_warnings
@each_name
def test_what_torch_refuses_is_refused(name: str, database: dict[type, Any]) -> None:
    info = database.get(EVERY[name])
    if info is None or info.module_error_inputs_func is None:
        # torch lists none: our constructor takes its arguments, and adds keywords alone.
        own, theirs = (
            inspect.signature(kind.__init__).parameters
            for kind in (NAMESAKES[EVERY[name]], EVERY[name])
        )
        more = {n: p.kind for n, p in own.items() if n not in theirs}
        assert list(own)[: len(theirs)] == list(theirs)
        assert {*more.values()} <= {inspect.Parameter.KEYWORD_ONLY}
        return
    for each in info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float64, requires_grad=True, training=True
    ):
        constructor, forward = (
            each.module_error_input.constructor_input,
            each.module_error_input.forward_input,
        )
        with pytest.raises(each.error_type, match=each.error_regex):
            NAMESAKES[EVERY[name]](*constructor.args, **constructor.kwargs)(*forward.args)


# One of each kind of state, and its input.
MODULES: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "LayerNorm": (((3, 4),), (2, 3, 4)),
    "RMSNorm": ((4,), (2, 3, 4)),
    "GroupNorm": ((2, 4), (2, 4, 3)),
    "BatchNorm1d": ((4,), (5, 4)),
    "BatchNorm2d": ((4,), (2, 4, 3, 3)),
    "BatchNorm3d": ((4,), (2, 4, 2, 2, 2)),
    "InstanceNorm2d": ((4, 1e-5, 0.1, True), (2, 4, 3, 3)),
    "PReLU": ((4,), (2, 4, 3)),
    "LeakyReLU": ((0.1,), (3, 4)),
    "GELU": (("tanh",), (3, 4)),
    "Softmax": ((1,), (3, 4)),
    "GLU": ((), (3, 4)),
    "LPPool1d": ((2, 2), (3, 4)),
    "MSELoss": ((), (3, 4)),
    "CrossEntropyLoss": ((torch.tensor([1.0, 2.0, 0.5, 1.0]),), (3, 4)),
}


def drawn(name: str) -> tuple[torch.Tensor, ...]:
    x = torch.randn(MODULES[name][1], dtype=torch.float64)
    if name == "MSELoss":
        return x, torch.randn_like(x)
    return (x, torch.tensor([0, 3, 1])) if name == "CrossEntropyLoss" else (x,)


@pytest.mark.parametrize("name", list(MODULES))
def test_modules_have_the_state_and_the_life_of_torchs(name: str) -> None:
    ours, theirs = made(name, *MODULES[name][0])
    assert isinstance(ours, EVERY[name])
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert ours.state_dict()._metadata == theirs.state_dict()._metadata
    arrays = drawn(name)
    want = run(theirs, arrays)
    theirs.load_state_dict(ours.state_dict())
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(again) is type(ours)
        torch.testing.assert_close(run(again, arrays), want)
    if not [*ours.parameters(), *ours.buffers()] or name == "CrossEntropyLoss":
        return
    with torch.device("meta"):
        empty = type(ours)(*MODULES[name][0]).double()
    shapes = [x.to("meta") for x in arrays]
    assert empty(*shapes).shape == want[0].shape
    empty.to_empty(device="cpu")
    empty.reset_parameters()
    fresh = type(ours)(*MODULES[name][0]).double()
    torch.testing.assert_close(run(empty, arrays), run(fresh, arrays))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("parameters", [None, torch.float32])
def test_short_inputs_beside_parameters_of_either_size(
    dtype: torch.dtype, parameters: torch.dtype | None
) -> None:
    for name in ("LayerNorm", "RMSNorm", "GroupNorm", "BatchNorm2d", "InstanceNorm2d"):
        ours, _ = made(name, *MODULES[name][0])
        ours = ours.to(parameters or dtype).eval()
        wide = EVERY[name](*MODULES[name][0]).double().eval()
        wide.load_state_dict(ours.state_dict())
        x = torch.randn(MODULES[name][1]).to(dtype)
        y = ours(x)
        assert y.dtype is dtype
        torch.testing.assert_close(y, wide(x.double()).to(dtype))
        if isinstance(ours, Namesake):
            assert ours._computed(x) is not None


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
@pytest.mark.parametrize("track", [True, False])
def test_running_statistics_are_torchs(momentum: float | None, track: bool) -> None:
    ours, theirs = made("BatchNorm2d", 4, momentum=momentum, track_running_stats=track)
    for _ in range(3):
        x = 2 * torch.randn(2, 4, 3, 3, dtype=torch.float64) + 5
        assert agree(copy.deepcopy(ours), copy.deepcopy(theirs), x) is (
            momentum is not None or not track
        )
        ours(x), theirs(x)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    assert agree(ours.eval(), theirs.eval(), x)
    assert not track or ours.num_batches_tracked == 3


def test_statistics_of_short_inputs_keep_their_digits() -> None:
    ours, theirs = bn.BatchNorm1d(4), nn.BatchNorm1d(4)
    x = (100 + torch.randn(64, 4)).bfloat16()
    for module in (ours, theirs):
        module(x)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    assert ours._computed(x) is None


def test_running_variances_of_float16_are_torchs() -> None:
    x = torch.tensor([[300.0], [-300.0], [300.0], [-300.0]]).half()
    ours, theirs = bn.BatchNorm1d(1).half(), nn.BatchNorm1d(1).half()
    for module in (ours, theirs):
        module(x)
    assert ours.running_var.isfinite().all()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("name", ["GLU", "LPPool1d", "LPPool2d"])
def test_inputs_have_torchs_name(name: str) -> None:
    given = () if name == "GLU" else (2, 2)
    x = torch.rand(2, 4, 4, 4)[0 if name == "LPPool1d" else slice(None)]
    ours, theirs = made(name, *given)
    torch.testing.assert_close(ours(input=x), theirs(input=x))


def test_batch_norms_become_synchronised_ones() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(bn.BatchNorm2d(4)))
    assert type(model[0]) is nn.SyncBatchNorm
    assert not bn.replace(model).replaced


def test_images_with_channels_last_keep_their_format() -> None:
    x = torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)
    for module in (bn.BatchNorm2d(4), bn.GroupNorm(2, 4), bn.InstanceNorm2d(4)):
        with torch.no_grad():
            torch.testing.assert_close(module(x), module(x.contiguous()))
            assert module._computed(x) is None
    assert bn.BatchNorm2d(4)(x).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_default_eps_is_that_of_the_arithmetic(dtype: torch.dtype) -> None:
    x = torch.full((2, 4), 3e-4, dtype=dtype)
    torch.testing.assert_close(bn.RMSNorm(4, dtype=dtype)(x), nn.RMSNorm(4, dtype=dtype)(x))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_of_classes_beside_smoothing(smoothing: float, reduction: str) -> None:
    weight, options = torch.tensor([1.0, 2.0, 0.5]), {"label_smoothing": smoothing}
    ours, theirs = made("CrossEntropyLoss", weight, ignore_index=1, reduction=reduction, **options)
    x, target = torch.randn(2, 3, 4, dtype=torch.float64), torch.randint(3, (2, 4))
    assert agree(ours, theirs, x, target)


@torchs_warnings
def test_what_an_op_does_not_take_runs_torchs_own() -> None:
    whole, narrow = torch.arange(-2, 3), torch.randn(4).half()
    assert torch.equal(bn.ReLU()(whole), F.relu(whole))
    wave = torch.randn(3, dtype=torch.complex64)
    assert torch.equal(bn.Tanh()(wave), wave.tanh())
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(bn.ReLU()(-sparse).to_dense(), torch.zeros(3, 3))
    for loss, like in ((bn.MSELoss(), nn.MSELoss()), (bn.L1Loss(), nn.L1Loss())):
        for x, y in (
            (torch.ones(3, 1), torch.zeros(2)),
            (narrow, narrow.float()),
            (narrow, 1 * whole[:4]),
        ):
            assert torch.equal(loss(x, y), like(x, y))
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    torch.testing.assert_close(bn.GELU()(nested).unbind()[1], F.gelu(nested.unbind()[1]))
    odd = bn.LayerNorm(4, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="type"):
        odd(torch.randn(2, 4))
    x = torch.randn(2, 3)
    assert torch.equal(
        bn.CrossEntropyLoss()(x, torch.tensor([1, 2]).byte()),
        F.cross_entropy(x, torch.tensor([1, 2])),
    )
    assert torch.equal(bn.Softmax()(x), F.softmax(x, 1))


@pytest.mark.parametrize("name", ["ReLU", "SiLU", "Threshold", "Hardtanh", "LeakyReLU", "ELU"])
def test_in_place_is_torchs_own(name: str) -> None:
    options = (0.1, 2.0) if name == "Threshold" else ()
    ours, theirs = getattr(bn, name)(*options, inplace=True), getattr(nn, name)(*options)
    x = torch.randn(3, 4)
    want = theirs(x.clone())
    assert ours(x) is x
    assert torch.equal(x, want)
    w = torch.randn(3, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(ours(w * 2).sum(), w)
    torch.testing.assert_close(slope, torch.autograd.grad(theirs(w * 2).sum(), w)[0])


def test_rows_of_which_nothing_counts_are_zeros() -> None:
    x = torch.full((1, 3), -torch.inf)
    assert torch.equal(bn.Softmax(1)(x), torch.zeros(1, 3))
    assert torch.equal(bn.LogSoftmax(1)(x), x)
    assert F.softmax(x, 1).isnan().all()


class Model(nn.Module):
    """Every kind of module, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            bn.BatchNorm1d(4), bn.GroupNorm(2, 4), bn.InstanceNorm1d(4, affine=True), bn.PReLU(),
            bn.LayerNorm((4, 6)), bn.GELU(), bn.RMSNorm(6), bn.LeakyReLU(0.2), bn.Softmax(1),
        )  # fmt: skip
        self.loss = bn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.loss(self.body(x), target)


def test_a_model_compiles_whole_and_updates_its_buffers() -> None:
    torch._dynamo.reset()
    model, x = Model().double(), torch.randn(3, 4, 6, dtype=torch.float64)
    target, plain = torch.randint(4, (3, 6)), copy.deepcopy(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(run(compiled, (x, target)), run(plain, (x, target)))
    assert plain.body[0].num_batches_tracked == 2


def test_a_model_is_exported_with_its_operators() -> None:
    model, x = Model().eval(), torch.randn(3, 4, 6)
    target = torch.randint(4, (3, 6))
    program = torch.export.export(model, (x, target))
    for op in ("batch_norm_inference", "layer_norm", "gelu", "cross_entropy"):
        assert f"baracuda.{op}" in program.graph_module.code
    torch.testing.assert_close(program.module()(x, target), model(x, target))


def test_modules_are_leaves_of_a_symbolic_trace() -> None:
    model = nn.Sequential(
        bn.LayerNorm(16), bn.ReLU(), bn.GLU(), bn.LPPool1d(2, 2), bn.SwiGLU(), bn.RotaryEmbedding()
    )
    traced = torch.fx.symbolic_trace(model)
    assert [n.target for n in traced.graph.nodes if n.op == "call_module"] == [*"0123"]
    # Modules that torch does not have are traced through.
    assert [n.target for n in traced.graph.nodes if n.op == "call_function"] == [bc.swiglu, bc.rope]
    x = torch.randn(2, 3, 16)
    assert torch.equal(traced(x), model(x))

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss, self.gated = bn.MSELoss(), bn.ReGLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.loss(input=self.gated(x, gate=x), target=0 * x)

    want = x.square().mul(x > 0).square().mean()
    torch.testing.assert_close(torch.fx.symbolic_trace(Named())(x), want)


def _losses() -> Iterator[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]:
    x = torch.randn(3, 4)
    yield bn.CrossEntropyLoss(), (x, torch.tensor([0, 1, 2]))
    yield bn.MSELoss(), (x, x.bfloat16())
    yield bn.BCEWithLogitsLoss(), (x.bfloat16(), x.bfloat16().sigmoid())


def test_modules_run_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = nn.Linear(6, 6)(torch.randn(2, 4, 6))
        assert x.dtype is torch.bfloat16
        Model()(x, torch.randint(4, (2, 6))).backward()
        for loss, arrays in _losses():
            assert torch.isfinite(loss(*arrays))
