"""The page in a real browser: it loads, sorts, filters, and fits a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baracuda.__main__ import main
from baracuda.declaration.dtypes import FLOATS
from baracuda.testing.report import Mark, Number, Plot, Table, number, page, parsed
from baracuda.tools import parity
from baracuda.tools.parity import Result

FIGURES = Path(__file__).parents[1] / "docs" / "benchmarks" / "h200.json"


def test_nothing_is_loaded_and_everything_is_escaped() -> None:
    marks = [Mark("a<b", "f32", 0.5, 'say "hi" & <go>'), Mark("c", "f32", 1.5, "beyond")]
    text = page("x & y", ["1 < 2"], [Plot("dots", "unit", ["f32"], marks)],
                [Table("t", ("op", "<i>"), [("a<b", number(0.5))])])  # fmt: skip
    assert "<title>x &amp; y</title>" in text
    assert "<title>say &quot;hi&quot; &amp; &lt;go&gt;</title>" in text
    assert 'data-op="a&lt;b"' in text
    assert "<i>" not in text.replace("<i class", "")
    assert "http" not in text
    assert text.count("src=") == text.count("@import") == text.count("url(") == 0


def test_cells_are_numbers_where_they_can_be() -> None:
    assert parsed("0.50") == Number(0.5, "0.50")
    assert parsed("broken") == "broken"
    assert number(1.23456) == Number(1.23456, "1.235")
    assert number(None).text == ""


def test_what_lies_far_out_is_drawn_at_the_edge() -> None:
    marks = [Mark("a", "f32", value, "") for value in (0.5, 5000.0)]
    text = page("", [], [Plot("dots", "unit", ["f32"], marks)], [])
    assert 'cx="5.00%"' in text
    assert 'cx="102.00%"' in text
    assert "≥ 10" in text


# -- in a browser --------------------------------------------------------------------------------

SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    found = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if found is None or driver is None:
        pytest.skip("needs Chromium and its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = found
    for switch in SWITCHES:
        options.add_argument(switch)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    chrome = webdriver.Chrome(options=options, service=service)
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module", params=["bench", "parity"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of each command."""
    target = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    if request.param == "bench":
        assert main(["bench", "--from", str(FIGURES), "--html", str(target)]) == 0
        return target
    errors = np.random.default_rng(0).random((4, 3, 4)).tolist()
    found = [
        Result(op, backend, "numpy", dtype, 5, (), error, "n=3")
        for op, of_op in zip(("rope", "rope_backward", "lerp", "glu"), errors, strict=True)
        for backend, of_it in zip(("numpy", "torch", "array_api"), of_op, strict=True)
        for dtype, error in zip(FLOATS, of_it, strict=True)
    ]
    found[0] = replace(found[0], error=17.5, failures={"a_law": "n=3: 17.50 x the tolerance"})
    found.append(replace(found[0], dtype="int8", error=0.0, failures={}))
    target.write_text(parity.page(found, "a machine", parity.summary(found, 1.0)))
    return target


@pytest.fixture(params=[1280, 390], ids=["desk", "phone"])
def shown(browser: Any, path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page, just loaded, at the width of a desk and of a phone."""
    size = {"width": request.param, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(path.as_uri())
    yield browser
    assert browser.get_log("browser") == []


COLUMN = """
const [table, name] = arguments;
const at = [...table.tHead.rows[0].cells].findIndex(x => x.textContent === name);
return [...table.tBodies[0].rows].map(x => x.cells[at].textContent);
"""


def test_a_click_on_a_head_sorts(shown: Any, path: Path) -> None:
    # Broken laws come before all else.
    number, at = ("share", 0) if path.stem == "bench" else ("f16", 1)
    table = shown.find_elements("tag name", "table")[at]
    heads = {x.text.strip(): x for x in table.find_elements("tag name", "button")}

    def click(name: str) -> list[str]:
        shown.execute_script("arguments[0].scrollIntoView({block: 'center'})", heads[name])
        heads[name].click()
        return seen(name)

    def seen(name: str) -> list[str]:
        return shown.execute_script(COLUMN, table, name)  # type: ignore[no-any-return]

    as_it_was = [float(x) for x in seen(number)]
    assert len(as_it_was) >= 10
    assert [float(x) for x in click(number)] == sorted(as_it_was) != as_it_was
    assert [float(x) for x in click(number)] == sorted(as_it_was, reverse=True)
    assert click("op") == sorted(seen("op"))
    assert len(table.find_elements("css selector", "[aria-sort]")) == 1


TOPS = """
return [...document.querySelectorAll(arguments[0])].filter(x => x.getClientRects().length)
  .map(x => x.getBoundingClientRect().y);
"""
VISIBLE = """
return [...document.querySelectorAll(arguments[0])].filter(x => x.getClientRects().length)
  .map(x => x.dataset.op);
"""


def test_the_filter_leaves_what_matches(shown: Any) -> None:
    def seen(kind: str) -> list[str]:
        return shown.execute_script(VISIBLE, f"{kind}[data-op]")  # type: ignore[no-any-return]

    every, height = len(seen("tr")), shown.find_element("tag name", "svg").size["height"]
    box = shown.find_element("id", "filter")
    box.send_keys("Rope")
    for kind in ("tr", "g", ".names div"):
        assert set(seen(kind)) == {"rope", "rope_backward"}, kind
    left = len(seen("tr"))
    assert 0 < left < every
    assert shown.find_element("id", "count").text == f"{left} of {every} rows"
    assert shown.find_element("tag name", "svg").size["height"] < height
    names, lines = (shown.execute_script(TOPS, kind) for kind in (".names div", "g > line"))
    assert len(names) == 2
    assert names == pytest.approx(lines, abs=1)
    box.send_keys("x")
    assert seen("tr") == seen("g") == []
    box.clear()
    box.send_keys(" ")
    assert len(seen("tr")) == every


WIDE = """
const width = document.documentElement.clientWidth, out = [];
for (const x of document.body.querySelectorAll("*:not(.scroll *)"))
  if (x.getBoundingClientRect().right > width) out.push(x.outerHTML.slice(0, 80));
return [document.documentElement.scrollWidth - width, out];
"""


def test_nothing_is_wider_than_the_screen(shown: Any) -> None:
    assert shown.execute_script(WIDE) == [0, []]
    if shown.execute_script("return innerWidth") == 390:
        inside = "const x = document.querySelector('.scroll'); return x.scrollWidth > x.clientWidth"
        assert shown.execute_script(inside)


def test_dots_say_what_they_are(shown: Any, path: Path) -> None:
    dots = shown.find_elements("css selector", "g[data-op=rope] circle title")
    assert dots
    what = "rope [4, 32, 8192, 128]" if path.stem == "bench" else "x the tolerance"
    assert all(what in dot.get_attribute("textContent") for dot in dots)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_scheme_of_the_reader(shown: Any, scheme: str) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    shown.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    back = shown.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert back == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]


def test_numbers_stand_below_each_other(shown: Any) -> None:
    style = (
        "const {textAlign, fontVariantNumeric} = getComputedStyle(document.querySelector('td.n'))"
    )
    found = shown.execute_script(f"{style}; return [textAlign, fontVariantNumeric]")
    assert found == ["right", "tabular-nums"]
