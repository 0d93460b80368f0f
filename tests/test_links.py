"""No link within the documents leads nowhere. `make linkcheck` asks for those to other sites."""

from __future__ import annotations

from pathlib import Path

import pytest
from children import ROOT
from links import anchors, dead, dead_in_site, slug

PAGES = [*ROOT.glob("*.md"), *(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)]


def test_every_link_of_the_documents_leads_somewhere() -> None:
    assert len(PAGES) > 100
    assert list(dead(PAGES, ROOT)) == []


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "other.md").write_text(
        "# One `op`: what, *why*\n\n(named)=\n## Twice\n```\n# no heading\n```\n## Twice\n"
    )
    return tmp_path / "page.md"


@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        ("[x](other.md) and [`y`](other.md#one-op-what-why)", ""),
        ("[x](other.md#twice), [x](other.md#twice-1), [x](other.md#named)", ""),
        ("[x](https://example.org/none#none), [x](mailto:a@b)", ""),
        ("`[x](none.md)` and\n```\n[x](none.md)\n```", ""),
        ("[x [y]](none.md)", "no file none.md"),
        ("[x](other.md#twice-2)", "no anchor other.md#twice-2"),
        ("[x](other.md#no-heading)", "no anchor other.md#no-heading"),
        ("[x](#here)", "no anchor #here"),
        ("[x](../up.md)", "no file ../up.md"),
        ("![x](none.svg \"title\")", "no file none.svg"),
        ('<img src="none.svg">', "no file none.svg"),
    ],
)  # fmt: skip
def test_a_link_that_leads_nowhere_is_found(page: Path, link: str, complaint: str) -> None:
    (page.parent.parent / "up.md").touch()
    page.write_text(f"text\n\n{link}\n")
    found = list(dead([page], page.parent))
    assert found == ([f"page.md:3: {complaint}"] if complaint else [])


def test_anchors_are_those_of_the_site() -> None:
    assert slug("warmup and cache: kernels before anybody waits for them") == (
        "warmup-and-cache-kernels-before-anybody-waits-for-them"
    )
    assert "a-training-step" in anchors(ROOT / "docs/performance.md")


@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        ("b.html", ""), ("b.html#here", ""), ("#own", ""), ("https://example.org", ""),
        ("c.html", "a.html: no file c.html"), ("b.html#own", "a.html: no anchor b.html#own"),
        ("#here", "a.html: no anchor #here"),
    ],
)  # fmt: skip
def test_a_link_of_the_site_that_leads_nowhere_is_found(
    tmp_path: Path, link: str, complaint: str
) -> None:
    (tmp_path / "a.html").write_text(f'<p id="own"><a href="{link}">x</a></p>')
    (tmp_path / "b.html").write_text('<p id="here">y</p>')
    assert list(dead_in_site(tmp_path)) == [complaint] * bool(complaint)
