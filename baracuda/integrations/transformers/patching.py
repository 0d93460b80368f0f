"""`patch` and `unpatch`: find what a model computes, and set forwards on its modules."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, wraps
from importlib.metadata import version
from types import MethodType
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from baracuda.errors import type_error, value_error
from baracuda.integrations.transformers import code, forwards, modules
from baracuda.integrations.transformers.modules import Mismatch

__all__ = ["KINDS", "Report", "patch", "unpatch"]

KINDS = ("norm", "mlp", "rope", "qk_norm", "residual", "loss", "embedding")
"""What `patch` can replace."""
TRIED = ("5.17",)
"""The versions of transformers that the tests run."""
_MADE: WeakKeyDictionary[Callable[..., Any], tuple[str, ...]] = WeakKeyDictionary()
"""The functions that `patch` has made, and their kinds. A mark on them would be copied by whoever
wraps them."""


@dataclass(repr=False)
class Report:
    """What `patch` or `unpatch` has done with a model.

    Attributes
    ----------
    patched : dict of str to str
        The names of modules with another forward now, and the kinds of what is replaced in them.
    left : dict of str to str
        The names of modules that were left as they are, and why.
    """

    patched: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = Counter(kind for kinds in self.patched.values() for kind in kinds.split(", "))
        what = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
        return f"Report(patched: {what or 'none'}; left: {len(self.left)})"


def _kinds(only: Iterable[str] | str | None, without: Iterable[str] | str | None) -> set[str]:
    """The kinds that are asked for."""
    wanted = set(KINDS)
    for name, given in (("only", only), ("without", without)):
        if given is None:
            continue
        words = {given} if isinstance(given, str) else set(given)
        if unknown := words - set(KINDS):
            expected = f"some of {', '.join(KINDS)}"
            raise value_error("patch", name, expected, ", ".join(sorted(map(str, unknown))))
        wanted = wanted & words if name == "only" else wanted - words
    return wanted


def _is_norm(module: torch.nn.Module) -> bool:
    """Whether a module has the parameters of a norm: a vector or two, and no modules."""
    own = [p for p in module._parameters.values() if p is not None]
    return bool(own) and all(p.ndim == 1 for p in own) and not module._modules


def _is_mlp(module: torch.nn.Module) -> bool:
    """Whether a module has the parts of an MLP: matrices and an activation, and nothing else."""
    parts = list(module.children())
    own = [p for p in module._parameters.values() if p is not None and p.ndim > 1]
    matrices = [part for part in parts if any(p.ndim > 1 for p in part.parameters())]
    return len(own) + len(matrices) > 1 and len(matrices) == len(parts) - 1


@dataclass(frozen=True)
class _Asked:
    """What the caller of `patch` asks for."""

    wanted: set[str]
    grad_dtype: str
    recompute: bool


class _Patching:
    """One walk over a model."""

    def __init__(self, model: torch.nn.Module, asked: _Asked) -> None:
        self.model, self.asked, self.report = model, asked, Report()
        self.wanted = asked.wanted
        self.names = {module: name for name, module in model.named_modules()}
        self.made: dict[torch.nn.Module, dict[str, Callable[..., Any]]] = {}
        # All layers of a model share a function, which a compiler then compiles once.
        self.rope, self.qk_norm = cache(forwards.attention), cache(forwards.heads)

    def set(self, module: torch.nn.Module, kind: str, make: Any, *found: Any) -> bool:
        """Take `make`'s forward for a module, or report why not."""
        name = self.names[module]
        for each in found:
            if isinstance(each, Mismatch):
                self.report.left[name] = f"{kind}: {each}"
                return False
        own = vars(module).get("forward")
        # A model that was pickled has its classes' own forwards on its modules.
        plain = own is None or getattr(own, "__func__", None) is type(module).forward
        if not (plain or _kinds_of(module)):
            self.report.left[name] = f"{kind}: its forward is set on the instance"
            return False
        self.made.setdefault(module, {})[kind] = make(type(module).forward, *found)
        return True

    def run(self) -> Report:
        """Walk over the model, and set the forwards that were found."""
        for module in self.names:
            if "norm" in self.wanted and _is_norm(module):
                self.set(module, "norm", forwards.norm, modules.norm_of(module), True)
            elif "mlp" in self.wanted and _is_mlp(module):
                recompute = self.asked.recompute
                self.set(module, "mlp", forwards.mlp, modules.mlp_of(module), recompute)
            elif "embedding" in self.wanted and isinstance(module, torch.nn.Embedding):
                found = modules.embedding_of(module)
                self.set(module, "embedding", forwards.embedding, found)
            elif hasattr(module, "layer_idx") and module._modules:
                self.attention(module)
            elif isinstance(module, PreTrainedModel):
                if "loss" in self.wanted and module.get_output_embeddings() is not None:
                    head = code.head_of(module)
                    self.set(module, "loss", forwards.causal, head, self.asked.grad_dtype)
                elif "residual" in self.wanted:
                    self.residuals(module)
        for module, made in self.made.items():
            _set(module, made)
            self.report.patched[self.names[module]] = ", ".join(made)
        return self.report

    def attention(self, module: torch.nn.Module) -> None:
        """Take a forward for the rotation of q and k, and for the norms before it where it can."""
        heads = code.heads_of(module) if "qk_norm" in self.wanted else code.NO_NORMS
        if heads != code.NO_NORMS and self.set(module, "qk_norm", self.qk_norm, heads):
            return
        rope = code.rope_of(module) if "rope" in self.wanted else code.NO_ROTATION
        if rope != code.NO_ROTATION:
            self.set(module, "rope", self.rope, rope)

    def residuals(self, module: torch.nn.Module) -> None:
        """Take forwards for the layers of a decoder, and for what joins them."""
        found = code.decoder_of(module)
        if isinstance(found, Mismatch):
            if any(isinstance(each, torch.nn.ModuleList) for each in module.children()):
                self.report.left[self.names[module]] = f"residual: {found}"
            return
        layers: Any = module.get_submodule(found.layers)
        done = [self.set(each, "residual", forwards.layer, modules.layer_of(each))
                for each in layers]  # fmt: skip
        last = module.get_submodule(found.norm)
        norm = modules.norm_of(last)
        if not all(done) or isinstance(norm, Mismatch):
            return
        alone = "norm" in self.wanted
        if self.set(last, "residual", forwards.norm, norm, alone):
            self.set(module, "residual", forwards.decoder, found)


def _kinds_of(module: torch.nn.Module) -> tuple[str, ...]:
    """What is replaced in a module; nothing where its forward is not of `patch`."""
    function = getattr(vars(module).get("forward"), "__func__", None)
    return () if function is None else _MADE.get(function, ())


def _set(module: Any, made: dict[str, Callable[..., Any]]) -> None:
    """Set the forward on an instance, with the signature of its class's own."""
    forward: Any = wraps(type(module).forward)(list(made.values())[-1])
    _MADE[forward] = tuple(made)
    module.forward = MethodType(forward, module)


def patch(
    model_or_class: Any,
    *,
    only: Iterable[str] | str | None = None,
    without: Iterable[str] | str | None = None,
    grad_dtype: Literal["accumulate", "weight"] = "weight",
    recompute: bool = True,
) -> Report:
    """Let a model of transformers compute by baracuda's ops, in place.

    What can be replaced is found by its structure, not by a model's name. Modules keep their
    classes, parameters, hooks and names in a ``state_dict``; each gets a forward of its own.

    Parameters
    ----------
    model_or_class : torch.nn.Module, or a class of transformers' models
        A model, also one that is wrapped (PEFT). Of a class, every instance that is made from now
        on is patched, until `unpatch` of the class; the report is that of a model of the default
        configuration with two layers.
    only, without : kinds, optional
        Which of these to replace; all by default. "norm": RMS and layer norms. "mlp": gated
        activations. "rope": the rotation of q and k. "qk_norm": norms of their heads, with the
        rotation that follows. "residual": adds, by the norms that follow them. "loss": the head and
        its loss in training. "embedding": the lookup of tokens. What is patched already stays so:
        to have less, call `unpatch` first.
    grad_dtype : {"accumulate", "weight"}
        The dtype in which the gradient of the head's weight is summed over chunks of tokens, as in
        `linear_cross_entropy`. "weight" rounds after each chunk; "accumulate" rounds once, and
        takes a float32 array of that shape more beside 16 bits.
    recompute : bool
        Compute the input of an MLP's last projection again in the backward pass, from the two
        arrays that the gate's gradient needs anyway, instead of keeping it. Saves one array of the
        MLP's inner width a layer, for one more run of the gated activation, as
        `torch.utils.checkpoint` does. The gradients are the same bit for bit. Under
        `torch.compile` the compiler decides.

    Returns
    -------
    Report
        What was patched, and what was left for which reason.

    Raises
    ------
    TypeError
        Neither a module nor a class of transformers' models.
    ValueError
        A kind that is not here, or another `grad_dtype`.

    Warns
    -----
    UserWarning
        A version of transformers that the tests do not run.

    Notes
    -----
    With ``labels`` in training mode ``output.logits`` is None, since no logits are made, under
    `torch.no_grad` too. In eval mode, or with ``without="loss"``, they are there. Call it before
    `torch.compile`. Values are those of the model's own formulas, which round more often in 16
    bits. Deterministic as the ops are. `unpatch` is the way back.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from baracuda.integrations.transformers import patch
    >>> config = LlamaConfig(
    ...     vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    ...     num_attention_heads=2,
    ... )
    >>> patch(LlamaForCausalLM(config))
    Report(patched: 5 norm, 2 mlp, 2 rope, 4 residual, 1 loss, 1 embedding; left: 0)
    """
    asked = _Asked(_kinds(only, without), grad_dtype, recompute)
    if grad_dtype not in ("accumulate", "weight"):
        raise value_error("patch", "grad_dtype", "'accumulate' or 'weight'", repr(grad_dtype))
    if (found := version("transformers")).rpartition(".")[0] not in TRIED:
        warnings.warn(
            f"patch: transformers {found} is not one of the versions that were tried "
            f"({', '.join(TRIED)}); what does not match is left alone",
            stacklevel=2,
        )
    if isinstance(model_or_class, torch.nn.Module):
        return _Patching(model_or_class, asked).run()
    if not (isinstance(model_or_class, type) and issubclass(model_or_class, PreTrainedModel)):
        expected = "a torch.nn.Module, or a class of transformers' models"
        raise type_error("patch", "model_or_class", expected, repr(model_or_class))
    return _patch_class(model_or_class, asked)


def _patch_class(kind: Any, asked: _Asked) -> Report:
    """Patch every instance of a class once it is made."""
    unpatch(kind)
    own = kind.__init__

    @wraps(own)
    def __init__(self: Any, *inputs: Any, **keywords: Any) -> None:
        own(self, *inputs, **keywords)
        _Patching(self, asked).run()

    _MADE[__init__] = tuple(asked.wanted)
    with torch.device("meta"):
        config = kind.config_class()
        config.num_hidden_layers = 2
        example = kind(config)
    kind.__init__ = __init__
    return _Patching(example, asked).run()


def unpatch(model_or_class: Any) -> Report:
    """Give a model its own forwards back, in place, or let a class make plain models again.

    Parameters
    ----------
    model_or_class : torch.nn.Module, or a class of transformers' models
        What `patch` was given, or any other. After that of a class, models already made stay
        patched.

    Returns
    -------
    Report
        The modules that have their class's forward again, as ``patched``; none for a class.

    Examples
    --------
    >>> import torch
    >>> from baracuda.integrations.transformers import unpatch
    >>> unpatch(torch.nn.Linear(2, 2))
    Report(patched: none; left: 0)
    """
    report = Report()
    if isinstance(model_or_class, type):
        made: Any = vars(model_or_class).get("__init__")
        if made in _MADE:
            model_or_class.__init__ = made.__wrapped__  # type: ignore[misc]
        return report
    for name, module in model_or_class.named_modules():
        if kinds := _kinds_of(module):
            del module.forward
            report.patched[name] = ", ".join(kinds)
    return report
