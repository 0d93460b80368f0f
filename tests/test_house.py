"""The house: floors, module sizes, and nothing heavy at import time; each check can fail."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from baracuda.calls.op import registry
from tests.lanes import included

PACKAGE = Path(__file__).parents[1] / "baracuda"

# From the ground; what stands on one floor are neighbours. A folder named here is one of these; of
# the others each module is.
FLOORS = [
    {"forks"},
    {"errors", "_version", "declaration/dtypes", "instruments", "layouts"},
    {"libraries"},
    {"declaration/collective", "declaration/roles", "declaration/shapes", "declaration/sku"},
    {"declaration/dispatch"},
    {"declaration/spec"},
    {
        "declaration/autocast",
        "declaration/backend",
        "declaration/hints",
        "declaration/indexed",
        "declaration/pairing",
        "declaration/values",
        "declaration/verify",
    },
    {"families/chunks", "families/numerics", "families/reductions"},
    {"families/entropy", "families/frequencies", "families/indexing", "families/philox"},
    {"families/rotation"},
    {"calls/check", "calls/cotangents", "calls/partitioning", "calls/ranges"},
    {"calls/body", "calls/cuts", "calls/outputs", "calls/sets"},
    {"backends"},
    {"calls/plan"},
    {"calls/cache"},
    {"calls/lists", "calls/recent", "calls/records", "calls/routes"},
    {"calls/op"},
    {
        "families/composites",
        "families/divergences",
        "families/log_probs",
        "families/losses",
        "families/norms",
        "families/scores",
        "families/steps",
        "families/vocabulary",
    },
    {"calls/adjoint", "ops"},
    {"frameworks"},
    {"__init__"},
    {"examples", "nn", "optim"},
    {"integrations"},
    {"testing"},
    {"tools"},
    {"__main__"},
]
HEIGHT = {name: height for height, names in enumerate(FLOORS) for name in names}
# Each is imported only where a file bears its name, and where one compares or demonstrates.
HEAVY = {"torch": "torch", "cupy": "cupy", "cupyx": "cupy", "jax": "jax", "jaxlib": "jax",
         "cuda": "cuda", "transformers": "transformers"}  # fmt: skip
DEMONSTRATE = {"testing", "tools"}
# Floors that are a framework's own, whatever their files are called.
NAMESAKES = {
    ("nn", "torch"), ("optim", "torch"), ("integrations", "torch"), ("integrations", "jax"),
}  # fmt: skip
# Packages whose modules import each other, besides their own __init__.
ROOMS = [
    ("backends", "numpy"), ("backends", "torch"), ("backends", "cuda"), ("frameworks", "torch"),
    ("nn",), ("optim",), ("testing",), ("integrations", "transformers"), ("examples",),
    ("tools", "train"),
]  # fmt: skip
# What is imported when it is asked for, and shown to type checkers.
LAZY = {("__init__", "baracuda.nn"), ("__init__", "baracuda.optim")}
MOST_LINES = 450


def imports(source: str, package: Path) -> list[tuple[int, str]]:
    """Every module that is imported, those taken from a package by name included."""

    def taken(module: str, name: str) -> str:
        path = package.joinpath(*module.split(".")[1:], name)
        is_module = path.is_dir() or path.with_suffix(".py").is_file()
        return f"{module}.{name}" if module == "baracuda" or is_module else module

    out = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            out += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            out += [(node.lineno, m) for m in {taken(module, a.name): 0 for a in node.names}]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            out += [(a.lineno, a.value) for a in node.args if isinstance(a, ast.Constant)]
    return out


def floor(parts: Sequence[str]) -> str:
    """What stands on a floor, of a module or a folder: its folder, or itself."""
    own = "/".join(parts[:2])
    return own if own in HEIGHT else parts[0]


def broken(package: Path) -> list[str]:
    """Every import that is not of a lower floor, and every module that is too long."""
    out = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        own, source = floor(parts), path.read_text(encoding="utf-8")
        where = "/".join(parts)
        if parts[-1] == "__init__" and any(name.startswith(f"{own}/") for name in HEIGHT):
            if (found := imports(source, package)) or not source:
                out.append(f"{where}: expected what the folder is for alone, got {found}")
            continue
        if own not in HEIGHT:
            out.append(f"{where}: stands on no floor")
            continue
        lines = source.count("\n")
        if not 1 <= lines <= MOST_LINES:
            out.append(f"{where}: {lines} lines")
        for line, module in imports(source, package):
            root, _, rest = module.partition(".")
            bears = HEAVY.get(root) in parts or (own, root) in NAMESAKES
            if root in HEAVY and not bears and own not in DEMONSTRATE:
                out.append(f"{where}:{line}: imports {root}")
            if module.startswith("."):
                out.append(f"{where}:{line}: relative import")
            if root != "baracuda":
                continue
            target = rest.split(".")
            # A package's names come from its __init__; the package itself is "baracuda.x".
            name = floor(target) if floor(target) in HEIGHT else "__init__"
            if name == own and own != "__init__":
                to_init = len(target) == 1 and parts != (own, "__init__")
                inside = parts[-1] == "__init__" and tuple(target[: len(parts) - 1]) == parts[:-1]
                room = any(parts[: len(r)] == r == tuple(target[: len(r)]) for r in ROOMS)
                to_own = tuple(target) == parts[:-1]
                if not (to_init or inside or room or to_own):
                    out.append(f"{where}:{line}: imports its neighbour {module}")
            elif HEIGHT[name] >= HEIGHT[own] and (own, module) not in LAZY:
                out.append(f"{where}:{line}: imports {module} from above")
    return out


def test_every_module_imports_lower_floors_only():
    assert broken(PACKAGE) == []


def _house(tmp_path, **files):
    for name, source in files.items():
        place = name if "/" in name else name.replace("__", "/")
        path = tmp_path / f"{place}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return broken(tmp_path)


@pytest.mark.parametrize(
    ("name", "source", "complaint"),
    [
        ("errors", "import baracuda.calls.plan\n",
         "errors:1: imports baracuda.calls.plan from above"),
        ("calls__check", "from baracuda import nn\n",
         "calls/check:1: imports baracuda.nn from above"),
        ("calls/__init__", "from baracuda import errors\n",
         "calls/__init__: expected what the folder is for alone, got [(1, 'baracuda.errors')]"),
        ("calls__attic", "x = 1\n", "calls/attic: stands on no floor"),
        ("errors", "import baracuda\n", "errors:1: imports baracuda from above"),
        ("errors", "from baracuda import lerp\n", "errors:1: imports baracuda.lerp from above"),
        ("declaration__spec", "def f():\n    from baracuda.calls.check import problem\n",
         "declaration/spec:2: imports baracuda.calls.check from above"),
        ("declaration__shapes", "from baracuda.declaration.sku import KernelSku\n",
         "declaration/shapes:1: imports baracuda.declaration.sku from above"),
        ("ops__rope", "from baracuda.ops.gated import glu\n",
         "ops/rope:1: imports its neighbour baracuda.ops.gated"),
        ("backends__numpy__blocks", "from baracuda.backends.torch import BACKEND\n",
         "backends/numpy/blocks:1: imports its neighbour baracuda.backends.torch"),
        ("calls__op", "import torch.nn\n", "calls/op:1: imports torch"),
        ("libraries__torch", "import jax.numpy as jnp\n", "libraries/torch:1: imports jax"),
        ("backends__torch", "from cuda.core import Device\n", "backends/torch:1: imports cuda"),
        ("calls__plan", "from importlib import import_module\nimport_module('cupy')\n",
         "calls/plan:2: imports cupy"),
        ("calls__op", "from .plan import Plan\n", "calls/op:1: relative import"),
        ("attic", "x = 1\n", "attic: stands on no floor"),
        ("calls__op", "", "calls/op: 0 lines"),
        ("calls__op", "x = 1\n" * 451, "calls/op: 451 lines"),
    ],
)  # fmt: skip
def test_the_check_of_the_floors_fails_on_a_house_that_breaks_them(
    tmp_path, name, source, complaint
):
    assert _house(tmp_path, **{name: source}) == [complaint]


def test_a_neighbour_taken_from_the_package_by_name_is_a_neighbour(tmp_path):
    assert _house(tmp_path, ops__a="x = 1\n", ops__b="from baracuda.ops import a\n") == [
        "ops/b:1: imports its neighbour baracuda.ops.a"
    ]


def test_the_check_of_the_floors_passes_a_house_that_keeps_them(tmp_path):
    assert not _house(
        tmp_path,
        calls__plan="from baracuda import backends\nfrom baracuda._version import __version__\n",
        libraries__torch="import torch\nfrom baracuda.libraries import Library\n",
        backends__numpy__blocks="from baracuda.backends.numpy import indexed\n",
        ops__x="import numpy\nfrom baracuda.calls.op import op\n",
        frameworks__torch="import torch\nfrom baracuda.calls.routes import routes\n",
        examples__model="import baracuda as bc\n",
        tools__train="import torch, jax, cupy\nfrom baracuda import lerp, plan_cache\n",
    )


def test_kernels_are_as_long_and_as_wide_as_modules():
    sources = [p for p in (PACKAGE / "cuda_src").rglob("*") if p.suffix in {".cu", ".cuh"}]
    assert len(sources) > 40
    for path in sources:
        lines = path.read_text().splitlines()
        assert 0 < len(lines) <= MOST_LINES, path.name
        assert max(map(len, lines)) <= 100, path.name


def test_what_a_kernel_includes_is_found_by_a_run_about_what_changed():
    for file in {op.spec.kernel.file for op in registry.values() if op.spec.kernel}:
        found = included(file)
        assert {f"baracuda/cuda_src/{file}", "baracuda/cuda_src/common/types.cuh"} <= found, file


LOADED = """
import sys
import tomllib
from collections.abc import Sequence
{first}
import baracuda
heavy = {{"torch", "cupy", "jax", "jaxlib", "cuda", "transformers"}}
print(*sorted(heavy & {{name.partition(".")[0] for name in sys.modules}}))
"""


def loaded(first: str = "") -> list[str]:
    """What is loaded after `first` and `import baracuda`, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(first=first)],
        capture_output=True, text=True, check=True, cwd=PACKAGE.parent,
    )  # fmt: skip
    return done.stdout.split()


def test_importing_baracuda_loads_no_framework():
    assert loaded() == []


def test_using_baracuda_on_numpy_loads_no_framework():
    assert (
        loaded(
            "import numpy as np, baracuda as bc; x = np.ones((2, 8)); p = bc.swiglu.plan(x); p(x);"
            "bc.gather_backward(x, np.zeros((2, 8), int), axis=1, src_shape=(2, 9)); str(p.sku)"
        )
        == []
    )


def test_the_check_of_what_is_loaded_sees_a_framework():
    assert "torch" in loaded("import torch")


# What is imported of a distribution, where the two have other names.
IMPORTED = {
    "cuda-core": "cuda.core", "cuda-bindings": "cuda.bindings", "nvidia-cuda-nvrtc": "nvrtc",
    "cupy-cuda13x": "cupy",
}  # fmt: skip


def unused(extras: dict[str, list[str]], source: str) -> list[str]:
    """The distributions that extras bring and the package does not import."""
    names = {re.split(r"[^\w-]", text)[0] for wanted in extras.values() for text in wanted}
    words = {name: IMPORTED.get(name, name.replace("-", "_")) for name in names}
    return sorted(n for n, word in words.items() if not re.search(rf"\b{word}\b", source))


def test_the_extras_bring_nothing_that_is_not_imported():
    table = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    extras = table["project"]["optional-dependencies"]
    source = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert unused(extras, source) == []
    assert unused({"x": ["nvidia-cuda-cccl>=13,<14"]}, source) == ["nvidia-cuda-cccl"]


def test_kernels_need_no_headers_of_a_toolkit():
    # Those of the host's emulator alone; others would have to come with a package.
    found = {path.name: re.findall(r"^ *# *include *<(.*)>", path.read_text(), re.M)
             for path in (PACKAGE / "cuda_src").rglob("*.cu*")}  # fmt: skip
    assert {name: some for name, some in found.items() if some} == {
        "types.cuh": ["cmath", "cstring"]
    }
