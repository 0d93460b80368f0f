"""The code of docs/recipes, against published formulas in plain torch and float64."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache, partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from documents import DOCS, defined

import baracuda as bc

BATCH, TOKENS, WIDTH, VOCABULARY, TEMPERATURE = 6, 5, 8, 13, 0.8
# How far a result may be off, in units of its largest element. Logits of 16 bits are rounded once.
ROOM = {torch.float64: 1e-9, torch.float32: 2e-6, torch.bfloat16: 2**-6}
Reference = Callable[[SimpleNamespace, torch.Tensor, torch.Tensor], torch.Tensor]


@cache
def page(name: str) -> SimpleNamespace:
    return defined(f"recipes/{name}.md")


def problem() -> SimpleNamespace:
    """Six sequences of float64, of different lengths, and what the recipes take beside them.

    The policy has moved by half a nat along the first four, up or down, for each sign of the
    advantage; along the others by as much at some tokens, but by less than what is clipped on the
    whole.
    """
    generator = torch.Generator().manual_seed(5)

    def drawn(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return values.bfloat16().double()  # which every dtype here has

    target = torch.randint(0, VOCABULARY, (BATCH, TOKENS), generator=generator)
    target[0, 3:], target[1, 1:], target[4, :2], target[5, 4:] = -100, -100, -100, -100
    x = SimpleNamespace(
        hidden=drawn(BATCH, TOKENS, WIDTH), weight=drawn(VOCABULARY, WIDTH), target=target,
        teacher_hidden=drawn(BATCH, TOKENS, 3), teacher_weight=drawn(VOCABULARY, 3),
        mask=target != -100, mismatched=drawn(4) + 1, nearer=drawn(4) - 1,
        desirable=torch.tensor([True, False, False, True, True, True]),
        advantage=torch.tensor([[0.5], [-1.0], [1.75], [-0.5], [2.0], [-0.25]]).double(),
    )  # fmt: skip
    moved = torch.tensor([0.5, 0.5, -0.5, -0.5, 0.0, 0.0]).double()[:, None].repeat(1, TOKENS)
    moved[4:] = torch.tensor([0.5, -0.5, 0.125, -0.0625, 0.0])
    now = logs(x.hidden, x.weight, target, TEMPERATURE)
    x.old = (now - moved) * x.mask
    x.by_token = x.advantage * torch.linspace(0.5, 1.5, TOKENS, dtype=torch.float64)
    x.reference = (now + 0.25 * drawn(BATCH, TOKENS)) * x.mask
    x.sums = x.reference.sum(-1)
    x.probs, x.ids = every(x.teacher_hidden, x.teacher_weight).exp().topk(4)
    x.probs = (x.probs / x.probs.sum(-1, keepdim=True)).bfloat16().double()
    return x


def every(hidden: torch.Tensor, weight: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of all tokens."""
    return F.log_softmax(hidden @ weight.T / temperature, -1)


def logs(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Those of the chosen tokens, 0 where none counts."""
    chosen = every(hidden, weight, temperature).gather(-1, target.clamp(min=0)[..., None])[..., 0]
    return torch.where(target == -100, 0.0, chosen)


def dpo(x: SimpleNamespace, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    policy, half = logs(hidden, weight, x.target).sum(-1), BATCH // 2
    pi, ref = policy[:half] - policy[half:], x.sums[:half] - x.sums[half:]
    return torch.log(1 + torch.exp(-0.3 * (pi - ref))).mean()


def orpo(x: SimpleNamespace, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    half, every_token = BATCH // 2, logs(hidden, weight, x.target)
    mean = torch.stack([row[kept].mean() for row, kept in zip(every_token, x.mask, strict=True)])
    p = mean.exp()
    odds = p / (1 - p)
    likelier = torch.sigmoid(torch.log(odds[:half] / odds[half:]))
    logits = (hidden @ weight.T)[:half].flatten(0, 1)
    supervised = F.cross_entropy(logits, x.target[:half].flatten())
    return supervised - (0.3 * likelier.log()).mean()


def kto(
    x: SimpleNamespace, hidden: torch.Tensor, weight: torch.Tensor, given: str = "mismatched"
) -> torch.Tensor:
    ratio = logs(hidden, weight, x.target).sum(-1) - x.sums
    point = getattr(x, given).mean().clamp(min=0)
    good = 1 - torch.sigmoid(0.3 * (ratio[x.desirable] - point))
    bad = 1 - torch.sigmoid(0.3 * (point - ratio[~x.desirable]))
    return torch.cat([1.3 * good, 0.7 * bad]).mean()


def grpo(
    x: SimpleNamespace, hidden: torch.Tensor, weight: torch.Tensor, *,
    level: str = "token", kind: str = "grpo", beta: float = 0.0, moved: bool = True,
) -> torch.Tensor:  # fmt: skip
    """Sequence by sequence and token by token."""
    policy = logs(hidden, weight, x.target, TEMPERATURE)
    old = x.old if moved else policy.detach()
    means, sums = [], []
    for i in range(BATCH):
        kept = x.mask[i]
        change = policy[i][kept] - old[i][kept]
        if level == "sequence":
            change = change.mean().expand(len(change))
        ratio = torch.exp(change)
        clipped = torch.clamp(ratio, 1 - 0.2, 1 + 0.3)
        gain = torch.min(ratio * x.advantage[i], clipped * x.advantage[i])
        away = x.reference[i][kept] - policy[i][kept]
        loss = beta * (torch.exp(away) - away - 1) - gain
        means.append(loss.mean())
        sums.append(loss.sum())
    if kind == "grpo":
        return torch.stack(means).mean()
    number = x.mask.sum() if kind == "bnpo" else BATCH * 7
    return torch.stack(sums).sum() / number


def ppo(x: SimpleNamespace, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The larger of two losses, as TRL has it, beside the entropy."""
    log = every(hidden, weight, TEMPERATURE)
    ratio = torch.exp(logs(hidden, weight, x.target, TEMPERATURE) - x.old)
    clipped = torch.clamp(ratio, 1.0 - 0.2, 1.0 + 0.2)
    losses = torch.max(-x.by_token * ratio, -x.by_token * clipped)
    entropy = -(log.exp() * log).sum(-1)
    return losses[x.mask].mean() - 0.05 * entropy[x.mask].mean()


def distill(
    x: SimpleNamespace, hidden: torch.Tensor, weight: torch.Tensor, *,
    kind: str = "forward", temperature: float = 1.0, beta: float = 0.3,
) -> torch.Tensor:  # fmt: skip
    """TRL's `generalized_jsd_loss`: the first argument of `kl_div` is the second of KL."""
    student = every(hidden, weight, temperature)[x.mask]
    teacher = every(x.teacher_hidden, x.teacher_weight, temperature)[x.mask]
    kl = partial(F.kl_div, reduction="batchmean", log_target=True)
    if kind == "forward":
        return kl(student, teacher)
    if kind == "reverse":
        return kl(teacher, student)
    both = torch.stack([student + math.log(1 - beta), teacher + math.log(beta)])
    mixture = torch.logsumexp(both, 0)
    return beta * kl(mixture, teacher) + (1 - beta) * kl(mixture, student)


def from_stored(x: SimpleNamespace, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    student = every(hidden, weight, 1.5)[x.mask]
    teacher = torch.zeros_like(student).scatter(-1, x.ids[x.mask], x.probs[x.mask])
    return F.kl_div(student, teacher, reduction="batchmean")


def soft_and_hard(x: SimpleNamespace, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    hard = F.cross_entropy((hidden @ weight.T).flatten(0, 1), x.target.flatten())
    return 0.25 * 2.0**2 * distill(x, hidden, weight, temperature=2.0) + 0.75 * hard


# Of each recipe its page and name, what it takes behind `target`, its options, and the formula.
_TEACHER = "teacher_hidden teacher_weight target"
_CLIPS = {"temperature": TEMPERATURE, "low": 0.2, "high": 0.3, "chunk": 7}
_GRPO: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "old"),
    ({"beta": 0.5, "kind": "bnpo"}, "old reference"),
    ({"level": "sequence"}, "old"),
    ({"level": "sequence", "beta": 0.5, "kind": "dr_grpo"}, "old reference"),
    ({"kind": "bnpo"}, ""),
)
RECIPES: list[tuple[str, str, dict[str, Any], Reference]] = [
    ("preferences dpo", "target sums", {"beta": 0.3}, dpo),
    ("preferences orpo", "target", {"beta": 0.3}, orpo),
    *(
        (
            "preferences kto", f"target sums desirable {given}",
            {"beta": 0.3, "shares": (1.3, 0.7)}, partial(kto, given=given),
        )
        for given in ("mismatched", "nearer")
    ),
    *(
        (
            "policy_gradients grpo", f"target advantage {given}",
            {**_CLIPS, **options, **({"longest": 7} if "dr_grpo" in options.values() else {})},
            partial(grpo, moved=bool(given), **options),
        )
        for options, given in _GRPO
    ),
    (
        "policy_gradients ppo", "target old by_token",
        {"temperature": TEMPERATURE, "bonus": 0.05}, ppo,
    ),
    *(
        ("distillation distill", _TEACHER, options, partial(distill, **options))
        for options in (
            {"kind": "forward"},
            {"kind": "reverse", "temperature": 1.5},
            {"kind": "jsd", "beta": 0.3},
        )
    ),
    ("distillation from_stored", "ids probs target", {"temperature": 1.5}, from_stored),
    ("distillation soft_and_hard", _TEACHER, {"alpha": 0.25}, soft_and_hard),
]  # fmt: skip

recipes = pytest.mark.parametrize(
    "recipe", range(len(RECIPES)), ids=lambda i: RECIPES[i][0].split()[1]
)


def close(got: torch.Tensor, want: torch.Tensor, room: float) -> None:
    got, want = (x.detach().double().cpu() for x in (got, want))
    assert got.shape == want.shape
    assert (got - want).abs().max() <= room * want.abs().max()


def narrowed(x: SimpleNamespace, dtype: torch.dtype, device: str) -> SimpleNamespace:
    """Models in `dtype`, log-probabilities and advantages in what losses have beside it."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    found = {}
    for name, value in vars(x).items():
        kind = dtype if "hidden" in name or "weight" in name else wide
        found[name] = value.to(device, kind if value.is_floating_point() else value.dtype)
    return SimpleNamespace(**found)


def compare(recipe: int, dtype: torch.dtype, device: str) -> None:
    name, given, options, formula = RECIPES[recipe]
    where, what = name.split()
    x = problem()
    arrays = x.hidden.requires_grad_(), x.weight.requires_grad_()
    expected = formula(x, *arrays)
    gradients = torch.autograd.grad(expected, arrays)

    own = narrowed(x, dtype, device)
    arrays = own.hidden.detach().requires_grad_(), own.weight.detach().requires_grad_()
    loss = getattr(page(where), what)(
        *arrays, *(getattr(own, name).detach() for name in given.split()), **options
    )
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    close(loss, expected, ROOM[dtype])
    for got, want in zip(torch.autograd.grad(loss, arrays), gradients, strict=True):
        assert got.dtype == dtype
        close(got, want, ROOM[dtype])


@pytest.mark.parametrize("dtype", ROOM, ids=str)
@recipes
def test_a_recipe_is_its_formula(recipe: int, dtype: torch.dtype) -> None:
    compare(recipe, dtype, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ROOM, ids=str)
@recipes
def test_a_recipe_is_its_formula_on_a_gpu(recipe: int, dtype: torch.dtype) -> None:
    compare(recipe, dtype, "cuda")


def test_the_problem_clips_both_ends() -> None:
    """Else the formulas above would agree without any clipping."""
    x = problem()
    ratio = torch.exp(logs(x.hidden, x.weight, x.target, TEMPERATURE) - x.old)
    gain = x.advantage.expand(ratio.shape)[x.mask]
    ratio = ratio[x.mask]
    for clipped in (ratio > 1.3, ratio < 0.8):
        assert (clipped & (gain > 0)).any()
        assert (clipped & (gain < 0)).any()
    assert ((ratio > 0.85) & (ratio < 1.2)).any()


@recipes
def test_no_recipe_keeps_logits(recipe: int) -> None:
    """From the forward to the backward pass. The formula, which does, shows that all is counted."""
    name, given, options, formula = RECIPES[recipe]
    where, what = name.split()
    x = problem()
    x.hidden, x.weight = x.hidden.requires_grad_(), x.weight.requires_grad_()
    logits = BATCH * TOKENS * VOCABULARY  # which is more than a gradient has
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    def largest(task: Callable[[], Any]) -> int:
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            task()
        return max(kept)

    arrays = [getattr(x, name).detach() for name in given.split()]
    loss = getattr(page(where), what)
    assert largest(lambda: loss(x.hidden, x.weight, *arrays, **options)) < logits
    assert largest(lambda: formula(x, x.hidden, x.weight)) >= logits // 2


def peak(task: Callable[[], Any]) -> int:
    """The most bytes that torch has on the CPU beside what there was."""
    task()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        task()
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    moves = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(accumulate(size for _, size in moves))


def test_peaks_are_those_of_the_page() -> None:
    text = (DOCS / "recipes" / "index.md").read_text(encoding="utf-8")
    said = (
        r"(\d+) bytes for each\slogit of all.*?then (\d+) bytes.*?"
        r": (\d+) bytes.*?, and (\d+) for"
    )
    (figures,) = re.findall(said, text, re.S)
    rows, vocabulary, chunk = 512, 4096, 64
    hidden, weight, other = (
        torch.randn(shape, WIDTH).bfloat16() for shape in (rows, vocabulary, vocabulary)
    )
    target = torch.randint(0, vocabulary, (rows,))
    advantage = torch.ones(rows)
    arrays = hidden.clone().requires_grad_(), weight.requires_grad_()

    def both(loss: Callable[..., torch.Tensor], *more: Any, **options: Any) -> int:
        return peak(lambda: torch.autograd.grad(loss(*arrays, *more, **options), arrays))

    def plain(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.nll_loss((hidden @ weight.T).float().log_softmax(-1), target)

    policy, pupil = page("policy_gradients").grpo, page("distillation").distill
    taught = hidden, other, target
    found = (
        both(plain) / rows,
        both(policy, target, advantage, kind="bnpo", chunk=chunk) / chunk,
        *(both(pupil, *taught, kind=kind, chunk=chunk) / chunk for kind in ("forward", "jsd")),
    )
    for bytes_, figure in zip(found, figures, strict=True):
        assert bytes_ / vocabulary == pytest.approx(int(figure), rel=0.1)


def test_advantages_are_those_of_trl() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.5, 2.0, 2.0, 2.0], dtype=torch.float64)
    found = page("policy_gradients").group_advantage(rewards, 3)
    first = np.array([1.0, 0.0, 0.5])
    np.testing.assert_allclose(found[:3, 0], (first - 0.5) / (first.std(ddof=1) + 1e-4))
    assert not found[3:].any()


def test_gradients_of_one_pass_are_those_of_grpo() -> None:
    x = problem()
    arrays = x.hidden.requires_grad_(), x.weight.requires_grad_()
    expected = torch.autograd.grad(grpo(x, *arrays, kind="bnpo", moved=False), arrays)
    given = [v.detach().numpy() for v in (*arrays, x.target, x.advantage)]
    log_prob, *found = page("policy_gradients").on_policy_gradient(
        *given, int(x.mask.sum()), temperature=TEMPERATURE
    )
    close(torch.asarray(log_prob), logs(*arrays, x.target, TEMPERATURE), 1e-9)
    for got, want in zip(found, expected, strict=True):
        close(torch.asarray(got), want, 1e-9)


def test_dpo_in_numpy() -> None:
    x = problem()
    arrays = x.hidden.requires_grad_(), x.weight.requires_grad_()
    loss = dpo(x, *arrays)
    given = [v.detach().numpy() for v in (*arrays, x.target, x.sums)]
    found = page("preferences").dpo_with_gradient(*given, beta=0.3)
    expected = loss, *torch.autograd.grad(loss, arrays)
    for got, want in zip(found, expected, strict=True):
        close(torch.asarray(got), want, 1e-9)


def test_padding_may_hold_anything() -> None:
    """Other programs leave NaN or 0 there."""
    x = problem()
    x.old, x.reference = (torch.where(x.mask, v, math.nan) for v in (x.old, x.reference))
    x.hidden = torch.where(x.mask[..., None], x.hidden, math.nan).requires_grad_()
    module = page("policy_gradients")
    for level in ("token", "sequence"):
        given = x.hidden, x.weight, x.target, x.advantage, x.old, x.reference
        loss = module.grpo(*given, level=level)
        (dhidden,) = torch.autograd.grad(loss, x.hidden)
        assert loss.isfinite()
        assert dhidden[x.mask].any()
        assert not dhidden[~x.mask].any()


def test_students_sample_and_learn() -> None:
    """The tokens that it samples are drawn again; its loss is the formula's of these."""
    generator = torch.Generator().manual_seed(2)
    student, teacher, weight, teacher_weight = (
        torch.randn(VOCABULARY, d, generator=generator, dtype=torch.float64)
        for d in (WIDTH, 3, WIDTH, 3)
    )
    prompt = torch.randint(0, VOCABULARY, (4, 3), generator=generator)
    arrays = student.requires_grad_(), weight.requires_grad_()
    torch.manual_seed(9)
    loss = page("distillation").on_policy(
        lambda t: student[t], weight, lambda t: teacher[t], teacher_weight, prompt, 5, kind="jsd"
    )
    found = torch.autograd.grad(loss, arrays)

    torch.manual_seed(9)
    tokens = prompt
    for _ in range(5):
        likely = torch.softmax(student.detach()[tokens[:, -1]] @ weight.detach().T, -1)
        tokens = torch.cat([tokens, torch.multinomial(likely, 1)], -1)
    assert tokens.shape == (4, 8)
    # The first token that is sampled comes after the last of the prompt.
    mask = torch.ones(4, 5, dtype=torch.bool)
    x = SimpleNamespace(
        mask=mask, teacher_hidden=teacher[tokens[:, 2:-1]], teacher_weight=teacher_weight
    )
    expected = distill(x, student[tokens[:, 2:-1]], weight, kind="jsd", beta=0.5)
    close(loss, expected, 1e-9)
    for got, want in zip(found, torch.autograd.grad(expected, arrays), strict=True):
        close(got, want, 1e-9)


def test_the_sampled_divergence_has_the_gradient_of_the_exact_one() -> None:
    """In expectation, which is taken over every token of the vocabulary."""
    x = problem()
    arrays = x.hidden[:1, :1].detach().requires_grad_(), x.weight.requires_grad_()
    x.teacher_hidden, x.mask = x.teacher_hidden[:1, :1], torch.ones(1, 1, dtype=torch.bool)
    exact = distill(x, *arrays, kind="reverse")

    total = torch.zeros((), dtype=torch.float64)
    for token, share in enumerate(every(*arrays)[0, 0].detach().exp()):
        target = torch.tensor([[token]])
        taught = bc.linear_log_prob(x.teacher_hidden, x.teacher_weight, target)
        sampled = page("distillation").sampled_reverse(*arrays, taught, target)
        total = total + share * sampled
    found = torch.autograd.grad(total, arrays)
    for got, want in zip(found, torch.autograd.grad(exact, arrays), strict=True):
        close(got, want, 1e-9)


def test_the_program_for_a_gpu_compares_like_with_like(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import grpo_memory

    monkeypatch.setattr("sys.argv", ["grpo_memory.py", "--tiny"])
    grpo_memory.main()
    found = re.findall(r"^  (.+?) +gradients (\S+) apart$", capsys.readouterr().out, re.M)
    names = ["torch", "torch.compile", "baracuda", "baracuda, chunk 3"]
    assert [name for name, _ in found] == [*names, "torch", "baracuda", "baracuda, in one pass"]
    assert all(float(apart) <= 2**-6 for _, apart in found)
    assert grpo_memory.apart((torch.tensor([1.0, 3.0]),), (torch.tensor([1.0, 4.0]),)) == 0.25

    # Without a reference model the loss is another.
    again, once = grpo_memory.variants(grpo_memory.TINY, "cpu", "eager")
    assert grpo_memory.apart(again["baracuda"](), once["torch"]()) > 2**-5
