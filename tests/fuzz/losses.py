"""Formulas of losses."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from .formulas import formula, reduced, share


@formula("mse_loss")
def mse_loss(t: Any, o: Any) -> Any:
    return (reduced(F.mse_loss(t["x"], t["target"], reduction="none"), o["reduction"]),)


@formula("l1_loss")
def l1_loss(t: Any, o: Any) -> Any:
    return (reduced(F.l1_loss(t["x"], t["target"], reduction="none"), o["reduction"]),)


@formula("l1_loss_backward")
def l1_loss_backward(t: Any, o: Any) -> Any:
    # The sign of NaN is NaN here, and 0 in torch.
    difference = t["x"] - t["target"]
    return (share(t, o) * torch.where(difference.isnan(), difference, difference.sign()),)


@formula("smooth_l1_loss")
def smooth_l1_loss(t: Any, o: Any) -> Any:
    each = F.smooth_l1_loss(t["x"], t["target"], reduction="none", beta=o["beta"])
    return (reduced(each, o["reduction"]),)


@formula("huber_loss")
def huber_loss(t: Any, o: Any) -> Any:
    each = F.huber_loss(t["x"], t["target"], reduction="none", delta=float(o["delta"]))
    return (reduced(each, o["reduction"]),)


@formula("binary_cross_entropy")
def binary_cross_entropy(t: Any, o: Any) -> Any:
    # torch's own refuses NaN and what is no probability.
    x, target = t["x"], t["target"]
    on, off = torch.log(x).clamp(min=-100), torch.log1p(-x).clamp(min=-100)
    each = ((target - 1) * off - target * on) * t.get("weight", 1)
    return (reduced(each, o["reduction"]),)


@formula("binary_cross_entropy_backward")
def binary_cross_entropy_backward(t: Any, o: Any) -> Any:
    x, each = t["x"], share(t, o) * t.get("weight", 1)
    return (each * ((x - t["target"]) / ((1 - x) * x).clamp(min=1e-12)),)


def _soft(x: Any) -> Any:
    return torch.logaddexp(x, torch.zeros_like(x))


@formula("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(t: Any, o: Any) -> Any:
    x, target = t["x"], t["target"]
    on = target * t.get("pos_weight", 1)
    each = (on * _soft(-x) + (1 - target) * _soft(x)) * t.get("weight", 1)
    return (reduced(each, o["reduction"]),)


@formula("binary_cross_entropy_with_logits_backward")
def binary_cross_entropy_with_logits_backward(t: Any, o: Any) -> Any:
    x, target = t["x"], t["target"]
    if "pos_weight" not in t:
        slope = torch.sigmoid(x) - target
    else:
        slope = (1 - target) * torch.sigmoid(x) - target * t["pos_weight"] * torch.sigmoid(-x)
    return (share(t, o) * t.get("weight", 1) * slope,)


@formula("kl_div")
def kl_div(t: Any, o: Any) -> Any:
    each = F.kl_div(t["x"], t["target"], reduction="none", log_target=o["log_target"])
    return (reduced(each, o["reduction"]),)


@formula("kl_div_backward")
def kl_div_backward(t: Any, o: Any) -> Any:
    return (-share(t, o) * (t["target"].exp() if o["log_target"] else t["target"]),)


@formula("cosine_embedding_loss")
def cosine_embedding_loss(t: Any, o: Any) -> Any:
    a, b, target = t["x1"], t["x2"], t["target"]
    length = [torch.sqrt((x * x).sum(-1) + 1e-12) for x in (a, b)]
    cosine = (a * b).sum(-1) / length[0] / length[1]
    far = (cosine - o["margin"]).clamp(min=0)
    # Another label costs nothing.
    each = torch.where(target == 1, 1 - cosine, torch.where(target == -1, far, 0.0))
    return (reduced(each, o["reduction"]),)


@formula("triplet_margin_loss")
def triplet_margin_loss(t: Any, o: Any) -> Any:
    a, p, n = t["anchor"], t["positive"], t["negative"]

    def distance(x: Any, y: Any) -> Any:
        z = x - y + o["eps"]
        # torch has no largest of nothing, and slopes of 0 at NaN for p = 1, which is NaN here.
        norm = torch.linalg.vector_norm(z, float(o["p"]), -1) if z.shape[-1] else z.sum(-1)
        bad = torch.where(z.isnan(), math.nan, 0.0)
        return norm + (bad * z.nan_to_num()).sum(-1)

    near, far = distance(a, p), distance(a, n)
    if o["swap"]:
        far = torch.minimum(far, distance(p, n))
    return (reduced((o["margin"] + near - far).clamp(min=0), o["reduction"]),)


def _rows(t: Any, o: Any, name: str) -> tuple[Any, Any, Any]:
    """Logits with the classes last, which rows count, and their targets, 0 for those that do not.

    A target out of range counts as ignored: under ``mode="raise"`` there is none.
    """
    x = t[name].movedim(o.get("axis", -1), -1)
    target = t["target"].long()
    counts = (target != o["ignore_index"]) & (target >= 0) & (target < x.shape[-1])
    return x, counts, target


def _log_sum(x: Any) -> Any:
    """With the slope of a softmax, where torch's is the exponential of a rounded difference."""
    most = x.detach().amax(-1, keepdim=True)
    most = torch.where(most.isfinite(), most, 0.0)
    return (torch.log(torch.exp(x - most).sum(-1, keepdim=True)) + most)[..., 0]


def _cross_entropy(x: Any, counts: Any, target: Any, o: Any, weight: Any = None) -> Any:
    """The loss of logits; rows that do not count are not looked at."""
    x, at = x[counts], target[counts]
    share = torch.ones(len(at), dtype=torch.float64) if weight is None else weight[at]
    if o["softcap"]:
        x = o["softcap"] * torch.tanh(x / o["softcap"])
    smooth = o["label_smoothing"]
    each = F.cross_entropy(x, at, weight, reduction="none", label_smoothing=smooth)
    if o["z_loss"] and len(at):
        each = each + o["z_loss"] * share * _log_sum(x) ** 2
    if o["reduction"] == "none":
        return torch.zeros(counts.shape, dtype=torch.float64).masked_scatter(counts, each)
    return each.sum() / (share.sum() if o["reduction"] == "mean" else 1) if len(at) else (
        x.sum() * 0 + (math.nan if o["reduction"] == "mean" else 0.0)
    )  # fmt: skip


def _metrics(x: Any, counts: Any, target: Any, o: Any, weight: Any = None) -> tuple[Any, Any]:
    """The accuracy of rows, and the class of their first largest logit."""
    top = torch.where(counts, x.argmax(-1), -1) if x.shape[-1] else torch.full_like(target, -1)
    each = torch.ones(int(counts.sum())) if weight is None else weight[target[counts]]
    share = torch.zeros(counts.shape, dtype=torch.float64).masked_scatter(counts, each.double())
    hits = share * (top == target)
    if o["reduction"] == "none":
        return hits, top
    return hits.sum() / (share.sum() if o["reduction"] == "mean" else 1), top


@formula("cross_entropy")
def cross_entropy(t: Any, o: Any) -> Any:
    rows, weight = _rows(t, o, "logits"), t.get("weight")
    return _cross_entropy(*rows, o, weight), *(
        _metrics(*rows, o, weight) if o.get("metrics") else ()
    )


@formula("linear_cross_entropy")
def linear_cross_entropy(t: Any, o: Any) -> Any:
    logits = F.linear(t["hidden"], t["weight"], t.get("bias"))
    return (_cross_entropy(*_rows({**t, "logits": logits}, o, "logits"), o),)


def _log_prob(x: Any, counts: Any, target: Any, o: Any) -> tuple[Any, ...]:
    """Of logits; rows that do not count are not looked at."""
    x = x[counts]
    if o["softcap"]:
        x = o["softcap"] * torch.tanh(x / o["softcap"])
    log = F.log_softmax(x / o["temperature"], -1)
    each = log.gather(-1, target[counts][:, None])[:, 0]
    # A probability of 0 adds nothing.
    spread = -(log.exp() * log.masked_fill(log == -math.inf, 0.0)).sum(-1)
    zeros = torch.zeros(counts.shape, dtype=torch.float64)
    return tuple(zeros.masked_scatter(counts, x) for x in (each, spread))


def _both(t: Any, o: Any) -> bool:
    """Whether entropies are asked for, or pulled at."""
    return o.get("entropy", False) or "dentropy" in t


@formula("log_prob")
def log_prob(t: Any, o: Any) -> Any:
    return _log_prob(*_rows(t, o, "logits"), o)[: 1 + _both(t, o)]


@formula("linear_log_prob")
def linear_log_prob(t: Any, o: Any) -> Any:
    if "rows" in t:
        n, at = len(t["hidden"]), t["rows"].long()
        at = at[(at >= 0) & (at < n)]
        some = {name: x[at] if name in ("hidden", "target") else x for name, x in t.items()}
        del some["rows"]
        return tuple([
            torch.zeros(n, dtype=x.dtype).index_add(0, at, x) for x in linear_log_prob(some, o)
        ])  # fmt: skip
    logits = F.linear(t["hidden"], t["weight"], t.get("bias"))
    return log_prob({**t, "logits": logits}, o)


@formula("linear_log_prob_with_gradient")
def linear_log_prob_with_gradient(t: Any, o: Any) -> Any:
    moved = {n: t[n].clone().requires_grad_() for n in ("hidden", "weight", "bias") if n in t}
    results = linear_log_prob({**t, **moved}, o)
    cotangents = [t["dlog_prob"], t.get("dentropy")][: len(results)]
    slopes = torch.autograd.grad(
        results, [*moved.values()], cotangents, allow_unused=True, materialize_grads=True
    )
    return *results, *slopes


def _with_gradient(forward: Any, names: tuple[str, ...]) -> Any:
    def both(t: Any, o: Any) -> Any:
        moved = {n: t[n].clone().requires_grad_() for n in names if n in t}
        loss, *metrics = forward({**t, **moved}, o)
        slopes = torch.autograd.grad(
            loss.sum(), [*moved.values()], allow_unused=True, materialize_grads=True
        )
        return loss, *metrics, *[slope * t.get("dloss", 1) for slope in slopes]

    return both


formula("cross_entropy_with_gradient")(_with_gradient(cross_entropy, ("logits",)))
formula("linear_cross_entropy_with_gradient")(
    _with_gradient(linear_cross_entropy, ("hidden", "weight", "bias"))
)


@formula("soft_target_cross_entropy")
def soft_target_cross_entropy(t: Any, o: Any) -> Any:
    x, target = (t[n].movedim(o["axis"], -1) for n in ("logits", "target"))
    smooth = o["label_smoothing"]
    target = target * (1 - smooth) + (smooth / max(x.shape[-1], 1) if smooth else 0.0)
    each = -(target * F.log_softmax(x, -1)).sum(-1)
    return (reduced(each, o["reduction"]),)


formula("soft_target_cross_entropy_with_gradient")(
    _with_gradient(soft_target_cross_entropy, ("logits",))
)


def _divergence(x: Any, y: Any, t: Any, o: Any) -> Any:
    """That of a student's logits x from a teacher's y."""
    student, teacher = (F.log_softmax(v / o["temperature"], -1) for v in (x, y))

    def kl(q: Any, p: Any) -> Any:
        return F.kl_div(q, p, reduction="none", log_target=True).sum(-1)

    if o["kind"] == "jsd":
        beta = o["beta"]
        mixture = torch.log(beta * teacher.exp() + (1 - beta) * student.exp())
        each = beta * kl(mixture, teacher) + (1 - beta) * kl(mixture, student)
    else:
        each = kl(student, teacher) if o["kind"] == "forward" else kl(teacher, student)
    return _weighed(each, t, o)


def _weighed(each: Any, t: Any, o: Any) -> Any:
    """What becomes of the losses of rows, which may have weights."""
    if "row_weight" not in t:
        return reduced(each, o["reduction"])
    each = each * t["row_weight"]
    return each.sum() / t["row_weight"].sum() if o["reduction"] == "mean" else (
        reduced(each, o["reduction"])
    )  # fmt: skip


@formula("kl_div_with_logits")
def kl_div_with_logits(t: Any, o: Any) -> Any:
    return (_divergence(t["logits"], t["teacher_logits"], t, o),)


formula("kl_div_with_logits_with_gradient")(_with_gradient(kl_div_with_logits, ("logits",)))


@formula("linear_kl_div")
def linear_kl_div(t: Any, o: Any) -> Any:
    logits = (F.linear(t[f"{of}hidden"], t[f"{of}weight"]) for of in ("", "teacher_"))
    return (_divergence(*logits, t, o),)


formula("linear_kl_div_with_gradient")(_with_gradient(linear_kl_div, ("hidden", "weight")))


@formula("topk_kl_div_with_logits")
def topk_kl_div_with_logits(t: Any, o: Any) -> Any:
    log = F.log_softmax(t["logits"] / o["temperature"], -1)
    ids, v = t["teacher_ids"], log.shape[-1]
    valid = (ids >= 0) & (ids < v)
    probs = torch.where(valid, t["teacher_probs"], 0)
    # Of no classes the sum is 0, and the derivatives are there.
    of_none = log.sum(-1, keepdim=True).expand(probs.shape)
    own = log.gather(-1, torch.where(valid, ids, 0).long()) if v else of_none
    each = torch.where(probs == 0, 0, torch.xlogy(probs, probs) - probs * own).sum(-1)
    return (_weighed(each, t, o),)


formula("topk_kl_div_with_logits_with_gradient")(
    _with_gradient(topk_kl_div_with_logits, ("logits",))
)


@formula("linear_topk_kl_div")
def linear_topk_kl_div(t: Any, o: Any) -> Any:
    return topk_kl_div_with_logits({**t, "logits": F.linear(t["hidden"], t["weight"])}, o)


formula("linear_topk_kl_div_with_gradient")(
    _with_gradient(linear_topk_kl_div, ("hidden", "weight"))
)


@formula("nll_loss")
def nll_loss(t: Any, o: Any) -> Any:
    x, counts, target = _rows(t, o, "x")
    at = target[counts]
    weight = t["weight"][at] if "weight" in t else torch.ones(len(at), dtype=torch.float64)
    each = -weight * x[counts].gather(-1, at[:, None])[:, 0]
    if o["reduction"] == "none":
        return (torch.zeros(counts.shape, dtype=torch.float64).masked_scatter(counts, each),)
    return (each.sum() / weight.sum() if o["reduction"] == "mean" else each.sum(),)


@formula("nll_loss_backward")
def nll_loss_backward(t: Any, o: Any) -> Any:
    x = torch.zeros(o["x_shape"], dtype=torch.float64)
    moved, counts, target = _rows({**t, "x": x}, o, "x")
    at = target[counts]
    weight = t["weight"][at] if "weight" in t else torch.ones(len(at), dtype=torch.float64)
    dloss = t["dloss"][counts] if o["reduction"] == "none" else t["dloss"]
    slope = -weight * dloss / (weight.sum() if o["reduction"] == "mean" else 1)
    rows = torch.zeros(counts.numel(), moved.shape[-1], dtype=torch.float64)
    rows[counts.reshape(-1).nonzero()[:, 0], at] = slope
    return (rows.reshape(moved.shape).movedim(-1, o["axis"]),)
