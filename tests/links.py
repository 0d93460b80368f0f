"""Links that lead nowhere: in the Markdown as it is read in a repository, and in the built site."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Fences first: what is in one is no link and no heading.
_CODE = re.compile(r"^(`{3,}|~{3,}).*?^\1|`[^`\n]*`", re.S | re.M)
_LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_IMAGE = re.compile(r"<(?:img|source|a)\b[^>]*?\b(?:src|srcset|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.M)
_INCLUDED = re.compile(r"^```\{include\} (\S+)$", re.M)
_TARGET = re.compile(r"^\(([\w-]+)\)=$", re.M)


def _prose(text: str) -> str:
    """The text without its code, as long as before in lines."""
    return _CODE.sub(lambda found: "\n" * found[0].count("\n"), text)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page in Markdown, those of what it includes too."""
    text = page.read_text(encoding="utf-8")
    fences = re.compile(r"^(`{3,}|~{3,}).*?^\1", re.S | re.M)
    found: list[str] = [m[1] for m in _TARGET.finditer(text)]
    for match in _HEADING.finditer(fences.sub("", text)):
        own = slug(match[1])
        count = sum(own == other or re.fullmatch(rf"{re.escape(own)}-\d+", other) is not None
                    for other in found)  # fmt: skip
        found.append(f"{own}-{count}" if count else own)
    included = (page.parent / match[1] for match in _INCLUDED.finditer(text))
    return frozenset(found).union(*map(anchors, included))


def dead(pages: Sequence[Path], root: Path) -> Iterator[str]:
    """Each link of pages in Markdown to a file below `root`, or an anchor, that is not there."""
    for page in pages:
        text = _prose(page.read_text(encoding="utf-8"))
        for match in (*_LINK.finditer(text), *_IMAGE.finditer(text)):
            url = urlsplit(match[1])
            if url.scheme or url.netloc:
                continue
            to = (page.parent / unquote(url.path)).resolve() if url.path else page.resolve()
            where = f"{page.relative_to(root)}:{text.count(chr(10), 0, match.start()) + 1}"
            if not to.exists() or not to.is_relative_to(root):
                yield f"{where}: no file {match[1]}"
            elif url.fragment and to.suffix == ".md" and url.fragment not in anchors(to):
                yield f"{where}: no anchor {match[1]}"


class _Page(HTMLParser):
    """What a page of HTML links to, and what can be linked to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        self.links += [given[name] for name in ("href", "src") if name in given]


def dead_in_site(site: Path) -> Iterator[str]:
    """Each link within a built site to a page, a file or an anchor that is not there."""
    pages = {p.resolve(): _Page(p.read_text(encoding="utf-8")) for p in site.rglob("*.html")}
    for path, page in pages.items():
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            to = (path.parent / unquote(url.path)).resolve() if url.path else path
            where = path.relative_to(site.resolve())
            if not to.exists():
                yield f"{where}: no file {link}"
            elif url.fragment and to in pages and unquote(url.fragment) not in pages[to].names:
                yield f"{where}: no anchor {link}"
