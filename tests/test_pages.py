"""The pages that are made of declarations and benchmarks are those that would be made now."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from links import dead_in_site

import baracuda as bc
from baracuda.calls import sets
from baracuda.calls.op import registry
from baracuda.testing import docstrings
from baracuda.tools import pages

for needed in pages.NEEDED:
    pytest.importorskip(needed)


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages.pages()


def test_no_page_is_stale(made: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "pages", lambda docs: made)
    assert list(pages.stale()) == [], "run: python -m baracuda.tools.pages"


def test_stale_missing_and_surplus_pages_are_found(
    made: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(pages.DOCS / "benchmarks", tmp_path / "benchmarks")
    for path, text in made.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setattr(pages, "pages", lambda docs: made)
        assert list(pages.stale(tmp_path)) == []
    with (tmp_path / "reference/support.md").open("a") as file:
        file.write("more\n")
    (tmp_path / "reference/ops/glu.md").unlink()
    (tmp_path / "reference/ops/gone.md").write_text("# gone\n")
    record = tmp_path / "benchmarks/h200-block.json"
    figures = json.loads(record.read_text())
    figures["block"]["variants"][0]["seconds"] *= 2
    record.unlink()
    record.write_text(json.dumps(figures))
    assert sorted(pages.stale(tmp_path)) == [
        "_static/block.svg", "reference/figures.md", "reference/ops/glu.md",
        "reference/ops/gone.md", "reference/support.md",
    ]  # fmt: skip


def test_the_command_says_what_is_stale(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "stale", lambda: iter([]))
    assert pages.main(["--check"]) == 0
    monkeypatch.setattr(pages, "stale", lambda: iter(["a.md"]))
    assert pages.main(["--check"]) == 1
    assert capsys.readouterr().out.split() == ["a.md"]


def test_a_library_that_is_missing_is_named_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "NEEDED", ("torch", "no_cupy"))
    for argv in ([], ["--check"]):
        with pytest.raises(SystemExit) as caught:
            pages.main(argv)
        assert caught.value.code == 2
        assert capsys.readouterr().err == (
            "pages: needs no_cupy, of which the tables tell what runs\n"
        )


# What pages are shown with knows these; any other is a slip, or has to be tried in a browser.
COMMANDS = {
    f"\\{name}"
    for name in (
        *["mathrm", "operatorname", "text", "left", "right", "Bigl", "Bigr", "bigl", "bigr"],
        *["lvert", "rvert", "lfloor", "rfloor", "frac", "sqrt", "sum", "overline", "bar"],
        *["begin", "end", "dots", "partial", "infty", "sigma", "Phi", "lambda", "beta", "theta"],
        *[
            "alpha",
            "varepsilon",
            "mu",
            "delta",
            "varphi",
            "pi",
            "zeta",
            "tau",
            "Vert",
            "tanh",
            "exp",
            "log",
        ],
        *["max", "min", "cos", "sin", "le", "ge", "cdot", "mp", "quad", "qquad"],
        *[",", "_", "\\", " "],
    )
}


def slips(text: str) -> list[str]:
    """The formulas of a page in Markdown that are no TeX as pages are shown with it."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.S | re.M)
    found = []
    for match in re.finditer(r"\$\$(.+?)\$\$|\$([^$]+?)\$", text, re.S):
        formula = match[1] or match[2]
        unknown = set(re.findall(r"\\(?:[A-Za-z]+|.)", formula)) - COMMANDS
        # An underscore in a name starts an index.
        named = re.search(r"\\(?:mathrm|operatorname|text)\{[^}]*(?<!\\)_", formula)
        uneven = formula.count("{") != formula.count("}")
        uneven |= formula.count(r"\left") != formula.count(r"\right")
        if unknown or named or uneven:
            found.append(formula)
    return found


def test_every_formula_is_tex() -> None:
    files = [*pages.DOCS.rglob("*.md"), pages.DOCS.parent / "README.md"]
    assert {f.name: bad for f in files if (bad := slips(f.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize(
    "formula", [r"\operatorname{one_hot}(t)", r"\sun x", r"\frac{a}{b", r"\left(a + b)"]
)
def test_a_formula_that_is_no_tex_is_found(formula: str) -> None:
    assert slips(f"So ${formula}$ and $a_b$.") == [formula]
    assert slips(f"`${formula}$` is code") == []


def test_only_windows_are_summed_over_as_windows(made: dict[str, str]) -> None:
    for path, text in made.items():
        assert "window}" not in text or "pool" in path, path


@pytest.mark.parametrize("name", list(registry))
def test_a_page_has_all_that_its_op_declares(made: dict[str, str], name: str) -> None:
    spec, page = registry[name].spec, made[f"reference/ops/{name}.md"]
    for what in (*spec.arrays, *spec.options, *spec.scalars):
        assert f"`{what}`" in page or f"{what}, " in page or f", {what}" in page, what
    for form in spec.signatures:
        assert form.text in page
    assert "```pycon\n>>> " in page
    parameters = page.partition("## Parameters\n")[2].partition("## ")[0]
    assert "As in [" not in parameters
    for array in spec.arrays:
        assert re.search(rf"^- `(\w+, )*{array}(, \w+)*` \(.+\): ", parameters, re.M), array
    assert f"({name}.md)" not in page
    if spec.adjoint_of:
        assert f"]({spec.adjoint_of}.md)" in page
    assert (f"`torch.{spec.namesake}` |" in page) == bool(spec.namesake)
    listed = "yes" if sets.taken_by(spec) else "no"
    assert f"| takes [lists of arrays](../../plans.md#lists-of-arrays) | {listed} |" in page
    assert f"ops/{name}\n" in made["reference/index.md"]
    assert f"(ops/{name}.md)" in made["reference/support.md"]
    assert f"(ops/{name}.md)" in made["reference/sharding.md"]


@pytest.mark.parametrize(
    ("code", "tex"),
    [
        ("a * sigmoid(b)", r"a \, \operatorname{sigmoid}(b)"),
        ("da = dy * s", r"\mathrm{da} = \mathrm{dy} \, s"),
        ("a - (b - c) * 2", r"a - \left(b - c\right) \, 2"),
        ("a - b - c", "a - b - c"),
        ("(abs(x)/y)**(p - 1)", r"\left(\frac{\lvert x\rvert}{y}\right)^{p - 1}"),
        ("(sum(abs(x)**p))**(1/p)",
         r"\Bigl(\sum \lvert x\rvert^{p}\Bigr)^{1/p}"),
        ("log(one_hot(x1))", r"\log(\operatorname{one\_hot}(\mathrm{x1}))"),
        ("0 <= i < n", r"0 \le i < n"),
        ("x[..., i]", None),
        ("y = x[..., i]", r"y = x[\dots, i]"),
        ("-inf * 0", r"-\infty \, 0"),
        ("deterministic=True", None),
        ("mode='raise'", None),
        ("a * torch.relu(b)", None),
        ("(2i, 2i + 1)", None),
        ("import x", None),
    ],
)  # fmt: skip
def test_formulas_become_mathematics(code: str, tex: str | None) -> None:
    assert docstrings.maths(code) == tex


def test_prose_links_ops_and_papers() -> None:
    text = docstrings.prose("As `glu` (arXiv:1612.08083) on [*b, n]; ``p > 0``, ``mode='drop'``.")
    assert text == (
        "As [`glu`](glu.md) ([arXiv:1612.08083](https://arxiv.org/abs/1612.08083)) on "
        "`[*b, n]`; $p > 0$, `mode='drop'`."
    )


def test_a_parameter_has_the_text_of_the_op_that_it_is_as_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def near(x: object) -> None:
        """Near.

        Parameters
        ----------
        x : array of shape [n]
            Any dtype.
        eps, a_b : float
            Small.
        """

    def far(x: object) -> None:
        """Far.

        Parameters
        ----------
        dy : array of shape [n]
        x : array of shape [2n]
        eps,
        a_b
            As in `near`; not used.
        """

    for op in (near, far):
        monkeypatch.setitem(registry, op.__name__, op)
    assert docstrings.bullets("far", "Parameters").splitlines() == [
        "- `dy` (array of shape `[n]`)",
        "- `x` (array of shape `[2n]`): Any dtype.",
        "- `eps` (float): Small.",
        "- `a_b` (float): Small.",
        "- Not used.",
    ]
    assert "- `eps, a_b` (float): Small." in docstrings.bullets("near", "Parameters")


def test_errors_as_of_another_op_are_said_of_the_op_itself() -> None:
    # What is said of parameters that the op lacks is left out, what is added is where it belongs.
    assert docstrings.bullets("softmax_backward", "Raises").splitlines() == [
        "- `TypeError`: A dtype that is not floating; mixed libraries, devices or dtypes; `scale` "
        "not a real number.",
        "- `ValueError`: No such axis; `scale` NaN or above 1e30 in size. `dy` and `y` of "
        "different shapes.",
    ]
    assert "`weight` of another length" in docstrings.bullets("batch_norm_backward", "Raises")


def test_errors_name_what_the_op_has() -> None:
    for name, op in registry.items():
        said = docstrings.bullets(name, "Raises")
        assert "TypeError" in said, name
        known = {*op.spec.arrays, *op.spec.options, *op.spec.scalars, *registry}
        words = {word for word in re.findall(r"`(\w+)`", said) if not word.endswith("Error")}
        assert words <= known, (name, words - known)


def test_dtypes_are_those_of_the_declaration() -> None:
    assert pages.dtypes(registry["scatter_reduce"].spec)[1:] == [
        ["`index`", "int32 or int64"],
        ["result `out`", "that of `x`"],
    ]
    assert pages.dtypes(registry["softmax"].spec)[1:] == [
        ["`bias`", "that of `x`, or float32 beside 16 bits"],
        ["`mask`", "bool"],
        ["result `y`", "that of `x`, or of the option `dtype`"],
    ]
    assert pages.dtypes(registry["cross_entropy"].spec)[-2:] == [
        ["result `accuracy`", "float32 where `logits` has 16 bits, else that of `logits`"],
        ["result `top`", "int64; int32 in JAX without 64 bits"],
    ]


def test_the_index_has_every_family(made: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.findall(r"^## (.+)$", made["reference/index.md"], re.M)
    assert len(found) == len(pages.FAMILIES) == len({op.spec.category for op in registry.values()})
    monkeypatch.setattr(pages, "FAMILIES", pages.FAMILIES[1:])
    with pytest.raises(ValueError, match="leaves out: gated"):
        pages._index()


def test_the_figures_are_those_of_the_benchmarks(made: dict[str, str]) -> None:
    record = json.loads((pages.DOCS / "benchmarks/h200.json").read_text())
    page = made["reference/figures.md"]
    assert page.count("(ops/") == len(record["rows"])
    for row in record["rows"]:
        assert f"{row['label']} | " in page
        assert f" {row['share']:.3f} " in page
    for path in (p for p in made if p.endswith(".svg")):
        picture = ElementTree.fromstring(made[path])
        width = float(picture.attrib["viewBox"].split()[2])
        ends = [
            float(x.attrib["x"]) + float(x.attrib["width"])
            for x in picture.iter("{http://www.w3.org/2000/svg}rect")
            if "x" in x.attrib
        ]
        assert len(ends) > 5, path
        assert max(ends) < width, path


def test_what_is_said_of_backends_on_request_holds() -> None:
    assert "By default `cupy` does not run for torch tensors, nor `torch` for NumPy" in (
        " ".join(pages.support().split())
    )
    why = dict(bc.lerp.plan(np.ones(2), np.ones(2)).why)
    assert "only when asked for by backend='torch'" in why["torch"]


# `test_links.py` follows the links of the sources, and pages that are written are compared above.
@pytest.mark.full("docs/", "baracuda/ops/", "baracuda/tools/")
@pytest.mark.slow("a page for every op")
def test_the_docs_build_without_a_warning_or_a_dead_link(tmp_path: Path) -> None:
    for module in ("sphinx", "furo", "numpydoc", "myst_parser"):
        pytest.importorskip(module)
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html",
         "-d", str(tmp_path / "trees"), str(pages.DOCS), str(tmp_path / "html")],
        capture_output=True, text=True, cwd=pages.DOCS.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "html/reference/ops/rope.html").is_file()
    assert list(dead_in_site(tmp_path / "html")) == []
