"""`baracuda.nn.replace`: a model computes and trains as before, with the same state."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from children import ROOT
from forks import printed
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import baracuda.nn as bn
from baracuda.nn.replacement import NAMESAKES


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.shortcut(x))


def resnet() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        Block(8, 8, 1), Block(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    ).double()  # fmt: skip


class Layer(nn.Module):
    """Attention and a gated product, each after a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.weights, self.activation = nn.Softmax(dim=-1), nn.GELU(approximate="tanh")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out(self.weights(q @ k.mT / x.shape[-1] ** 0.5) @ v)
        return x + self.down(self.activation(self.up(self.norm2(x))))


def transformer() -> nn.Module:
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Embedding(11, 8), Layer(8), Layer(8), nn.LayerNorm(8), nn.Linear(8, 11)
    )
    model[4].weight = model[0].weight
    return model.double()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], int, int]] = {
    "resnet": (resnet, lambda: torch.randn(4, 3, 8, 8, dtype=torch.float64), 9, 1),
    "transformer": (transformer, lambda: torch.randint(11, (2, 6)), 9, 0),
}
each_model = pytest.mark.parametrize("name", list(MODELS))


def trained(model: nn.Module, x: torch.Tensor) -> tuple[object, ...]:
    """Outputs and gradients of two steps, and of the model in eval after them."""
    optimiser, seen = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(2):
        optimiser.zero_grad()
        y = model(x)
        y.square().mean().backward()
        optimiser.step()
        seen += [y.detach(), [p.grad.clone() for p in model.parameters()]]
    model.eval()
    with torch.no_grad():
        return *seen, model(x), dict(model.state_dict())


@each_model
def test_a_model_trains_as_before(name: str) -> None:
    make, draw, replaced, left = MODELS[name]
    x, theirs, ours = draw(), make(), make()
    parameters, hooked = dict(ours.named_parameters()), []
    hook = ours[3].register_forward_hook(lambda *_: hooked.append(1))
    report = bn.replace(ours)
    assert (len(report.replaced), len(report.left)) == (replaced, left)
    assert not bn.replace(ours).replaced
    assert all(p is parameters[n] for n, p in ours.named_parameters())
    assert not any(type(m) in NAMESAKES for n, m in ours.named_modules() if n not in report.left)
    assert repr(ours) == repr(theirs)
    torch.testing.assert_close(trained(ours, x), trained(theirs, x))
    assert len(hooked) == 3
    hook.remove()
    # Checkpoints load both ways.
    again = make()
    again.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(again.eval()(x), ours(x))
    copied = pickle.loads(pickle.dumps(copy.deepcopy(ours)))
    torch.testing.assert_close(copied(x), ours(x))
    assert bn.restore(ours).replaced == report.replaced
    assert not any(type(m) in NAMESAKES.values() for m in ours.modules())
    torch.testing.assert_close(copied(x), ours(x))


def test_a_replaced_model_compiles_also_where_it_was_compiled_before() -> None:
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()), torch.randn(3, 4)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    want = compiled(x)
    bn.replace(model)
    torch.testing.assert_close(compiled(x), want)
    graphs = []

    def kept(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph.code)
        return graph

    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend=kept)(x), want)
    assert "baracuda.layer_norm" in graphs[0]


def test_kinds_are_names_or_classes_of_either() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(4), nn.GELU(), nn.ReLU())

    assert bn.replace(model(), "GELU").replaced == {"1": "GELU"}
    assert bn.replace(model(), nn.ReLU).replaced == {"2": "ReLU"}
    kinds = ["GELU", nn.ReLU, bn.LayerNorm]
    assert list(bn.replace(model(), kinds).replaced) == ["0", "1", "2"]
    with pytest.raises(ValueError, match=r"kinds: expected some of .*LayerNorm.*, got 'Linear'"):
        bn.replace(model(), ["Linear"])


class Own(nn.LayerNorm):
    """A subclass whose forward nobody knows."""


def test_what_is_left_has_a_reason() -> None:
    patched, prepared = nn.ReLU(), nn.ReLU()
    patched.forward = torch.tanh  # type: ignore[method-assign]
    prepared.qconfig = torch.ao.quantization.default_qconfig
    scripted = torch.jit.script(nn.ReLU())
    model = nn.ModuleDict({
        "own": Own(4), "in place": nn.ReLU(inplace=True), "patched": patched,
        "prepared": prepared, "parametrised": weight_norm(nn.LayerNorm(4), dim=None),
        "odd": nn.LPPool1d(3, 2), "even": nn.LPPool1d(2, 2), "weighed": nn.BCELoss(torch.ones(2)),
        "cut": nn.LPPool2d(2, 2, ceil_mode=True), "scripted": scripted, "softmax": nn.Softmax(),
        "synchronised": nn.SyncBatchNorm(4), "ours": bn.GLU(),
    })  # fmt: skip
    report = bn.replace(model)
    assert report.replaced == {"even": "LPPool1d", "weighed": "BCELoss"}
    assert report.left == {
        "own": "Own is a subclass of torch.nn.LayerNorm",
        "in place": "inplace=True is torch's own function",
        "patched": "its forward is set on the instance",
        "prepared": "it is prepared for quantisation",
        "parametrised": "ParametrizedLayerNorm is a subclass of torch.nn.LayerNorm",
        "odd": "the results differ from torch's unless norm_type is even and ceil_mode False",
        "cut": "the results differ from torch's unless norm_type is even and ceil_mode False",
        "scripted": "it is compiled by torch.jit",
        "softmax": "dim=None is torch's to choose",
    }
    assert repr(report) == "Replacement(replaced: 1 BCELoss, 1 LPPool1d; left: 9)"
    back = bn.restore(nn.ModuleList([bn.GLU(gate_first=True), bn.GLU(), bn.SwiGLU(), nn.ReLU()]))
    assert (list(back.replaced), list(back.left)) == (["1"], ["0"])


def test_a_module_that_is_there_twice_stays_one() -> None:
    norm = nn.LayerNorm(4)
    model = nn.ModuleList([norm, nn.Sequential(norm), nn.GLU(0)])
    assert bn.replace(model).replaced == {"0": "LayerNorm", "2": "GLU"}
    assert model[0] is model[1][0]
    assert repr(model[2]) == "GLU(dim=0)"
    x = torch.randn(4, 4)
    torch.testing.assert_close(model[2](x), nn.GLU(0)(x))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_the_layers_of_torchs_transformer() -> None:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, activation=nn.GELU(), batch_first=True, dtype=torch.float64
    )
    theirs = nn.TransformerEncoder(layer, 2)
    ours, x = copy.deepcopy(theirs), torch.randn(2, 5, 8, dtype=torch.float64)
    # The activation is one module, in both layers of a deep copy two.
    replaced = bn.replace(ours).replaced
    assert sorted(replaced.values()) == ["GELU"] * 2 + ["LayerNorm"] * 4
    torch.testing.assert_close(trained(ours, x), trained(theirs, x))
    # In eval without gradients torch runs a layer as one function, and no module in it.
    ran = []
    for module in ours.modules():
        if type(module) is bn.LayerNorm:
            computed = module._computed
            module._computed = lambda x, f=computed: ran.append(1) or f(x)  # type: ignore[method-assign]
    ours.eval()
    with torch.no_grad():
        ours.layers[1](x)
    assert not ran
    ours.layers[1](x.requires_grad_())
    assert len(ran) == 2


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_sharded_models_and_parameters(tmp_path: Path) -> None:
    program = ROOT / "tests/torch_module_devices.py"
    found = json.loads(printed(program, str(tmp_path / "at"), ranks=2))
    names = ("sharded_models", "narrow_models", "distributed_parameters")
    assert found == [{name: [] for name in names}] * 2
