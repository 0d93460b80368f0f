"""The first pages a newcomer meets: short, their figures those of the record, no link dead."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import pytest

from baracuda.calls.op import registry
from baracuda.testing.pictures import DTYPE, KINDS, PALETTES, SHOWN, STEPS, headline, models, steps

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORDS = " ".join(README.split())
SVG = "{http://www.w3.org/2000/svg}"


def recorded(name: str) -> Any:
    return json.loads((ROOT / "docs/benchmarks" / f"{name}.json").read_text(encoding="utf-8"))


def test_the_readme_is_read_in_minutes() -> None:
    assert len(README.splitlines()) <= 120
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    shown = [re.search(r"import (torch|numpy|jax)", block) for block in blocks]
    assert [found and found[1] for found in shown] == ["torch", "numpy", "jax"]
    assert max(block.count("\n") for block in blocks) <= 8


def figures() -> dict[str, str]:
    """What the README says of the speed, as the record has it today."""
    record, steps = recorded("h200"), recorded("h200-block")["block"]["variants"]
    rows = record["rows"]
    against = [min(row["peers"].values()) / row["ours"] for row in rows]
    eager = [
        min(row["peers"][name] for name in KINDS["torch eager"] if name in row["peers"])
        / row["ours"]
        for row in rows
    ]
    sizes = sorted(row["ideal_bytes"] / 1e9 for row in rows)
    tenth = len(rows) // 10

    def counted(those: Iterable[bool]) -> str:
        number = sum(those)
        return f"{number} ({number / len(rows):.0%})".replace("%", " %")

    ms = {step["name"]: f"{step['seconds'] * 1e3:.1f} ms" for step in steps}
    trained = [found for _, _, found in models(recorded("h200-models"))]

    def of(name: str, what: str = "seconds", ours: Sequence[str] = ("baracuda",)) -> list[float]:
        """Of each model: the least of what is ours, as a part of another's."""
        return [min(found[x][what] for x in ours) / found[name][what] for found in trained]

    liger, plain, compiled = of("Liger"), of("transformers"), of("torch.compile")
    both, memory = of("torch.compile", ours=tuple(STEPS)[1:2]), of("Liger", "peak")
    more = of("Liger", "peak", tuple(STEPS)[1:2])
    return {
        "Liger's step": f"takes {min(liger):.2f} to {max(liger):.2f} of Liger's time",
        "the plain step": f"{min(plain):.2f} to {max(plain):.2f} of the unpatched model's",
        "the compiled step": f"it takes {min(compiled):.2f} to {max(compiled):.2f}, and "
        f"{min(both):.2f} to {max(both):.2f} when it is compiled too.",
        "the peak": f"{100 - 100 * max(memory):.0f} to {100 - 100 * min(memory):.0f} % below "
        f"Liger's, and {100 * min(more) - 100:.0f} to {100 * max(more) - 100:.0f} % above when",
        "the machine": f"one {record['device']} with torch {record['torch'].partition('+')[0]}.",
        "rows": f"has {len(rows)} problems of {len({row['op'] for row in rows})} functions",
        "sizes": f"({sizes[tenth]:.2f} to {sizes[-tenth]:.1f} GB moved by a call)",
        "share": f"- {counted(row['share'] >= 0.9 for row in rows)} run at 90 % or more",
        "ceiling": f"copies memory, {record['ceiling'] / 1e9:.0f} GB/s",
        "at least as fast": f"- {counted(ratio >= 0.995 for ratio in against)} are as fast as the",
        "median": f"Median speed: {median(against):.2f} times that of the fastest alternative, "
        f"{median(eager):.1f} times that of torch eager.",
        "worst": f"Worst: {min(against):.2f} times that of the fastest alternative.",
        "eager step": f"{ms['plain eager']} in torch eager",
        "compiled step": f"{ms['torch.compile']} with `torch.compile`",
        "our step": f"{ms['baracuda']} with baracuda and {ms['baracuda, torch.compile']} with both",
    }


@pytest.mark.parametrize(("about", "said"), figures().items(), ids=list(figures()))
def test_the_figures_of_the_readme_are_recorded(about: str, said: str) -> None:
    assert said in WORDS, f"README.md, {about}: the record in docs/benchmarks says {said!r}"


def headings(path: Path) -> set[str]:
    """The anchors of a page, as GitHub and the site make them."""
    lines = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_no_link_of_the_first_pages_is_dead(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        assert (ROOT / path).is_file(), f"{page} links {link}, which is not there"
        assert not anchor or anchor in headings(ROOT / path), f"{page}: no heading for {link}"


@pytest.mark.parametrize("scheme", PALETTES)
@pytest.mark.parametrize("name", ["steps", "speed"])
def test_the_pictures_of_the_first_pages_are_legible(name: str, scheme: str) -> None:
    if name == "steps":
        assert f'"docs/_static/{name}-{scheme}.svg"' in README
    made, words = {
        "steps": (steps(recorded("h200-models"), PALETTES[scheme]), {*STEPS}),
        "speed": (headline(recorded("h200"), PALETTES[scheme]), {*KINDS, *dict(SHOWN)}),
    }[name]
    picture = ElementTree.fromstring(made)
    paper, *bars = (shape.attrib["fill"] for shape in picture.iter(f"{SVG}rect"))
    texts = list(picture.iter(f"{SVG}text"))
    assert min(contrast(text.attrib["fill"], paper) for text in texts) >= 4.5
    assert min(contrast(bar, paper) for bar in bars) >= 3
    assert words | {"baracuda"} <= {text.text for text in texts}


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_picture_shows_each_alternative_that_was_timed() -> None:
    rows = {(row["op"], row["label"], row["dtype"]): row for row in recorded("h200")["rows"]}
    named = {name for names in KINDS.values() for name in names}
    for op, label in SHOWN:
        row = rows[op, label, DTYPE]
        left_out = [seconds for name, seconds in row["peers"].items() if name not in named]
        assert op in registry
        # An alternative of no kind may be left out only where another one is faster.
        assert all(seconds > min(row["peers"].values()) for seconds in left_out), op
