"""The commands say what is so: their words and their JSON, checked against plans and registry."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import array_api_compat
import lanes
import numpy as np
import pytest

import baracuda as bc
from baracuda import backends, tools
from baracuda.__main__ import COMMANDS, main
from baracuda.backends.cuda import compiler, unavailable
from baracuda.calls.op import registry
from baracuda.testing.timed_row import ideal_bytes
from baracuda.tools import CannotRun, chosen, doctor, explain, ops
from baracuda.tools.doctor import Finding, least


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own."""
    monkeypatch.setenv("BARACUDA_CACHE_DIR", str(tmp_path))
    compiler._disk.cache_clear()
    return tmp_path / "kernels"


def said(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> str:
    """What a command prints, where it ends as it should."""
    assert main(argv) == status
    return capsys.readouterr().out


def in_json(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> Any:
    return json.loads(said(capsys, *argv, "--json", status=status))


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line of a command that cannot be asked so."""
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.strip()


def words(line: str) -> list[str]:
    return line.split()


def test_every_command_has_a_module_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(doctor.__file__).parent
    assert set(COMMANDS) <= {path.stem for path in folder.iterdir()}
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    with pytest.raises(SystemExit) as ended:
        main(["nonsense"])
    assert ended.value.code == 2


# ops


def test_the_support_table_is_what_backends_claim(capsys: pytest.CaptureFixture[str]) -> None:
    found = in_json(capsys, "ops")
    assert list(found["ops"]) == list(registry)
    for name, row in found["ops"].items():
        spec = registry[name].spec
        assert row["category"] == spec.category
        assert list(row["backends"]) == list(backends.names())
        for library in ("numpy", "torch", "jax"):
            for backend, dtypes in backends.claims(spec, library).items():
                assert set(dtypes) <= set(row["backends"][backend])
        assert set(row["backends"]["array_api"]) == set(spec.dtypes)
    lines = said(capsys, "ops").splitlines()
    assert words(lines[0]) == ["op", *backends.names()]
    assert words(lines[1])[0] == next(iter(registry))
    gather = next(line for line in lines if line.startswith("gather "))
    assert gather.count("all 15 dtypes") >= 3


def test_an_op_is_told_with_its_forms_options_and_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = said(capsys, "ops", "rope")
    spec = registry["rope"].spec
    assert all(form.text in text for form in spec.signatures)
    assert "``positions * base**(-2*i/rotary_dim)``" in text
    assert "rope(x: A, positions: Array | None = None, /, *, base: float = 10000.0" in text
    option = next(line for line in text.splitlines() if line.startswith("seq_axis"))
    assert words(option) == ["seq_axis", "int", "-2", "structural"]
    found = in_json(capsys, "ops", "lerp_backward")
    assert found["gradient_of"] == "lerp"
    assert found["options"] == [
        {"name": "weight", "type": "float", "required": True, "default": None, "kind": "run-time"}
    ]
    x = np.zeros(37, np.float32)
    picked = {row["library"]: row for row in found["example"] if row["picked"]}
    assert picked["numpy"]["sku"] == json.loads(bc.lerp_backward.plan(x, weight=0.5).sku.to_json())
    assert {row["backend"] for row in found["example"] if row["library"] == "numpy"} >= {
        "numpy", "array_api"
    }  # fmt: skip
    assert not {row["backend"] for row in found["example"]} & set(found["not_here"])


@pytest.mark.parametrize("name", list(registry))
def test_every_op_has_a_formula_and_its_options(name: str) -> None:
    op = registry[name]
    text = ops.formula(op)
    assert text
    assert "Parameters" not in text
    found = {o["name"]: o for o in ops.options(op)}
    assert set(found) == {*op.spec.options, *op.spec.scalars}
    for option, o in found.items():
        assert o["required"] == (option not in op.spec.defaults)


@pytest.mark.parametrize("command", [["ops"], ["explain", "--shapes", "8"]])
def test_an_unknown_op_is_refused_with_what_is_close(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, *command, "swiglue")
    start, _, close = line.partition("; close to it: ")
    assert start == f"baracuda {command[0]}: no op is called 'swiglue'"
    assert close.split(", ")[0] == "swiglu"
    far = refused(capsys, *command, "zzzz").partition("; close to it: ")[2]
    names, _, where = far.partition("; ")
    assert 1 <= len(names.split(", ")) <= 3
    assert set(names.split(", ")) <= set(registry)
    assert where == "python -m baracuda ops lists all"


def test_a_family_stands_for_its_ops() -> None:
    gated = [name for name, op in registry.items() if op.spec.category == "gated"]
    assert chosen(["swiglu", "gated"]) == ["swiglu", *[name for name in gated if name != "swiglu"]]
    assert chosen(["rope"]) == ["rope"]
    assert chosen(None) == list(registry)
    with pytest.raises(CannotRun, match="no op is called 'gates'"):
        chosen(["gates"])


# explain


@pytest.mark.parametrize("xp", ["numpy", "torch", "jax"])
def test_explain_tells_the_plan_of_such_a_call(xp: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(xp)
    argv = ["explain", "gather", "--shapes", "64x32,64x8", "--xp", xp, "--option", "axis=1"]
    argv += ["mode=drop", "--index-dtype", "int32"]
    src, index = np.zeros((64, 32), np.float32), np.zeros((64, 8), np.int32)
    if xp == "torch":
        torch = pytest.importorskip("torch")
        src, index = torch.from_numpy(src), torch.from_numpy(index)
    if xp == "jax":
        jnp = pytest.importorskip("jax.numpy")
        src, index = jnp.asarray(src), jnp.asarray(index)
    if "cuda" in str(getattr(src, "device", "")):
        pytest.skip("what is explained is a call on a GPU")
    plan = bc.gather.plan(src, index, axis=1, mode="drop")
    found = in_json(capsys, *argv)
    if found["device"].startswith("cuda"):
        pytest.skip("what is explained is a call on a GPU")
    assert found["sku"] == json.loads(plan.sku.to_json())
    assert [(row["backend"], row["reason"]) for row in found["why"]] == list(plan.why)
    assert found["ideal_bytes"] == ideal_bytes(plan.problem) == 4 * (64 * 32 + 2 * 64 * 8)
    assert found["workspace_bytes"] == plan.workspace_size
    assert found["options"] == {"axis": 1, "mode": "drop"}
    assert found["outputs"] == {"out": "float32[64, 8]"}
    assert found["expected_seconds"] == pytest.approx(found["ideal_bytes"] / found["ceiling"])
    text = said(capsys, *argv)
    assert f"plan         {plan.sku}\n" in text
    for backend, reason in plan.why:
        assert [backend, *reason.split()] in [words(line) for line in text.splitlines()]


def test_explain_allocates_nothing_for_numpy(capsys: pytest.CaptureFixture[str]) -> None:
    found = in_json(capsys, "explain", "swiglu", "--shapes", "1000000x2000000,-")
    assert found["inputs"] == {"x": "float32[1000000, 2000000]"}
    assert found["ideal_bytes"] == 12 * 10**12
    assert found["sku"]["layout"] == "contiguous"


def test_explain_takes_scalars_optional_arrays_and_infinity(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert in_json(capsys, "explain", "lerp", "--shapes", "(),()")["outputs"] == {"y": "float32[]"}
    rope = in_json(capsys, "explain", "rope", "--shapes", "2x8x16,8", "--dtype", "float64")
    assert rope["inputs"] == {"x": "float64[2, 8, 16]", "positions": "int64[8]"}
    argv = ["explain", "lp_pool2d", "--shapes", "8x8", "--option", "norm_type=inf"]
    pool = in_json(capsys, *argv, "--option", "kernel_size=(2, 3)")
    assert pool["options"]["norm_type"] == "inf"
    assert pool["options"]["kernel_size"] == [2, 3]
    forced = in_json(capsys, "explain", "glu", "--shapes", "2x4", "--option", "backend=array_api")
    assert forced["sku"]["backend"] == "array_api"


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("swiglu --shapes 8x7",
         "swiglu: x: expected an even extent along axis 1, got shape (8, 7) "
         "[x=[*b 2n *c], b=(8,)]"),
        ("swiglu --shapes 8,8,8", "3 shapes, where swiglu takes x, gate"),
        ("gather --shapes 8", "gather: missing a required argument: 'index'"),
        ("swiglu --shapes 8 --option axis=0.5", "swiglu: axis: expected an integer, got 0.5"),
        ("swiglu --shapes 8 --dtype int32", "swiglu: x: expected a floating dtype "
         "(float32, float64, float16, bfloat16), got int32"),
        ("swiglu --shapes 8 --dtype float33", "numpy cannot make such an array: data type "
         "'float33' not understood"),
        ("swiglu --shapes 8 --device cpu", "--device goes with --xp torch, got --xp numpy"),
    ],
)  # fmt: skip
def test_what_cannot_be_explained_is_one_line(
    argv: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, "explain", *argv.split()) == f"baracuda explain: {line}"


@pytest.mark.parametrize("argv", [["--shapes", "8xa"], ["--shapes", "-1"], [],
                                  ["--shapes", "8", "--option", "axis"]])  # fmt: skip
def test_what_is_no_shape_or_option_is_usage(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "swiglu", *argv])
    assert ended.value.code == 2
    capsys.readouterr()


def test_a_copy_that_cannot_be_measured_is_said_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(seconds: float) -> float:
        raise RuntimeError("out of memory\nmore")

    monkeypatch.setattr(explain.timing, "copy_ceiling", fail)
    measured = explain.ceiling
    monkeypatch.setattr(explain, "ceiling", lambda device: measured("cuda:0"))
    reason = "the copy cannot be measured: out of memory"
    found = in_json(capsys, "explain", "glu", "--shapes", "2x4")
    assert found["ceiling"] is found["expected_seconds"] is None
    assert found["unmeasured"] == reason
    assert f"at best      {reason}\n" in said(capsys, "explain", "glu", "--shapes", "2x4")


# cache


def test_the_cache_is_counted_and_dropped(
    capsys: pytest.CaptureFixture[str], own_cache: Path
) -> None:
    empty = {"folder": str(own_cache), "entries": 0, "bytes": 0}
    assert in_json(capsys, "cache", "info") == empty
    assert not own_cache.exists()
    for name in ("entries/aa/one", "entries/bb/two", "entries/bb/three", "notes"):
        path = own_cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
    assert in_json(capsys, "cache", "info") == empty | {"entries": 3, "bytes": 3000}
    assert said(capsys, "cache", "info") == f"{own_cache}: 3 kernels, 3,000 bytes\n"
    assert said(capsys, "cache", "clear") == f"{own_cache}: dropped 3 kernels, 3,000 bytes\n"
    # What is not the cache's own stays.
    assert [path.name for path in own_cache.rglob("*") if path.is_file()] == ["notes"]
    gone = in_json(capsys, "cache", "clear")
    assert gone == empty | {"dropped": 0, "dropped_bytes": 0, "left": {}}


def test_what_cannot_be_dropped_is_named(
    capsys: pytest.CaptureFixture[str], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = own_cache / "entries" / "aa" / "one"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")

    def unlink(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(Path, "unlink", unlink)
    found = in_json(capsys, "cache", "clear", status=1)
    assert (found["dropped"], found["entries"]) == (0, 1)
    assert found["left"] == {str(path): "not yours"}


# doctor


def test_the_doctor_finds_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    found = in_json(capsys, "doctor")
    assert found["faults"] == []
    assert found["version"] == bc.__version__
    libraries = {row["name"]: row for row in found["libraries"]}
    for name, row in libraries.items():
        try:
            assert (row["state"], row["text"]) == ("ok", version(name))
        except PackageNotFoundError:
            assert row["state"] in ("ok", "missing")
    rows = {row["name"]: row for row in found["backends"]}
    assert list(rows) == list(backends.names())
    assert rows["numpy"]["text"] == "ran swiglu on arrays of numpy (cpu)"
    assert rows["array_api"]["text"].startswith("ran swiglu on arrays of numpy (cpu), ")
    reason = unavailable()
    assert reason is None or rows["cuda"] == {"name": "cuda", "state": "not here", "text": reason}
    kernel = next(row for row in found["kernels"] if row["name"] == "NVRTC")
    if libraries["nvidia-cuda-nvrtc"]["state"] == "ok":
        assert kernel["state"] == "ok"
        assert "compiled swiglu_f32_" in kernel["text"]
        assert ("for sm_90, though no such device is here" in kernel["text"]) == bool(reason)
    # It compiles past the cache.
    assert found["cache"]["entries"] == 0 or not reason


def test_the_doctor_speaks_plainly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chapters = {
        "libraries": [Finding("numpy", "ok", "2.0"), Finding("torch", "missing", "pip install x")],
        "devices": [Finding("driver", "none", "no driver")],
    }
    monkeypatch.setattr(doctor, "examine", lambda: chapters)
    text = said(capsys, "doctor")
    assert ["torch", "missing", "pip", "install", "x"] in map(words, text.splitlines())
    assert text.endswith("all that is installed works\n")
    chapters["libraries"][1] = Finding("torch", "broken", "cannot be imported")
    assert main(["doctor"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "baracuda doctor: torch: cannot be imported\n"
    assert "all that" not in captured.out
    assert in_json(capsys, "doctor", status=1)["faults"] == ["torch"]


def test_devices_are_told_as_their_driver_describes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    many = SimpleNamespace(multiprocessor_count=132)
    driver = SimpleNamespace(
        cuDeviceGetCount=lambda: (0, 1),
        cuDeviceTotalMem=lambda ordinal: (0, 80 << 30),
        cuDriverGetVersion=lambda: (0, 13010),
    )
    core = SimpleNamespace(
        Device=lambda ordinal: SimpleNamespace(name="a GPU", arch="90", properties=many)
    )
    modules = {"cuda.core": core, "cuda.bindings.driver": driver}
    for module in (doctor, tools):
        monkeypatch.setattr(module, "unavailable", lambda: None)
        monkeypatch.setattr(module, "import_module", modules.__getitem__)
    assert doctor.devices() == [
        Finding("driver", "ok", "CUDA 13.1"),
        Finding("cuda:0", "ok", "a GPU, sm_90, 132 multiprocessors, 80 GiB"),
    ]


def test_a_terminal_gets_tables_that_keep_what_stands_in_brackets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    tools.table(("name", "mend"), [("torch", "pip install 'baracuda[torch]'")])
    out = capsys.readouterr().out
    assert "baracuda[torch]" in out
    assert "┃" in out


def test_what_is_installed_and_does_not_work_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    package = doctor.PACKAGES[0]
    assert doctor._library(package) == Finding("numpy", "ok", np.__version__)
    monkeypatch.setattr(doctor, "least", lambda name: "99.1")
    old = doctor._library(package)
    assert old.fault
    assert old.text.startswith(f"{np.__version__}, where 99.1 is needed")
    monkeypatch.setattr(doctor, "least", lambda name: "0")

    def broken(module: str) -> Any:
        raise OSError("libfoo.so: cannot open\nmore")

    monkeypatch.setattr(doctor, "import_module", broken)
    assert doctor._library(package).text.startswith(
        f"{np.__version__} cannot be imported: libfoo.so: cannot open"
    )
    missing = doctor._library(doctor.Package("no-such-package", "no_such", "torch"))
    assert missing == Finding("no-such-package", "missing", "pip install 'baracuda[torch]'")


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("needs cuda-core: pip install 'baracuda[cuda]'", "not asked"),
        ("cannot load the NVIDIA driver: libcuda.so.1: no such file", "none"),
        ("the NVIDIA driver does not start: CUDA_ERROR_NO_DEVICE", "none"),
        ("the NVIDIA driver does not start: CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "broken"),
    ],
)
def test_a_driver_that_does_not_start_is_a_fault_and_none_is_not(
    reason: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "unavailable", lambda: reason)
    assert doctor.devices() == [Finding("driver", state, reason)]


def test_a_backend_that_computes_something_else_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "to_numpy", lambda x: np.asarray(x) + 1)
    assert doctor._backend("numpy") == Finding(
        "numpy", "broken", "swiglu on numpy (cpu): the result is wrong"
    )


def test_a_folder_that_cannot_be_written_is_a_fault(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not doctor.disk().fault
    own_cache.write_bytes(b"a file")
    assert doctor.disk().fault


def test_the_least_versions_are_those_of_the_metadata() -> None:
    assert least("numpy") == "2.0"
    assert least("cuda-bindings") == "13"
    assert least("no-such-package") == "0"


# A machine that has NumPy and nothing else.


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python that finds what baracuda cannot do without."""
    folder = tmp_path_factory.mktemp("bare")
    for module in (np, array_api_compat):
        packages = Path(module.__file__ or "").parents[1]
        for path in packages.glob(f"{module.__name__}*"):
            (folder / path.name).symlink_to(path)
    root = Path(bc.__file__ or "").parents[1]
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV"))}
    return own | {"PYTHONPATH": os.pathsep.join((str(folder), str(root)))}


@pytest.mark.parametrize(
    "argv",
    [["doctor"], ["ops"], ["ops", "gather"], ["cache", "info"], ["cache", "clear"],
     ["explain", "lerp", "--shapes", "4,4"]],
)  # fmt: skip
def test_numpy_alone_is_enough(argv: list[str], bare: dict[str, str]) -> None:
    command = [sys.executable, "-S", "-m", "baracuda", *argv, "--json"]
    done = subprocess.run(command, env=bare, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    if argv == ["doctor"]:
        states = {row["name"]: row["state"] for row in found["libraries"]}
        assert states.pop("numpy") == states.pop("array-api-compat") == "ok"
        assert set(states.values()) == {"missing"}
        assert {row["name"]: row["state"] for row in found["backends"]} == {
            "cuda": "not here", "cupy": "not here", "torch": "not here", "numpy": "ok",
            "array_api": "ok",
        }  # fmt: skip
    if argv == ["ops"]:
        assert found["not_here"]["torch"] == "needs torch: pip install 'baracuda[torch]'"


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["warmup", "--arch", "sm_90"], "warmup needs cuda.core, which is not installed: "
         "pip install 'baracuda[cuda]'"),
        (["explain", "lerp", "--shapes", "4,4", "--xp", "torch"], "an array of torch needs torch, "
         "which is not installed: pip install 'baracuda[torch]'"),
    ],
)  # fmt: skip
def test_what_needs_more_names_the_extra(argv: list[str], line: str, bare: dict[str, str]) -> None:
    command = [sys.executable, "-S", "-m", "baracuda", *argv]
    done = subprocess.run(command, env=bare, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"baracuda {argv[0]}: {line}\n"


def test_a_reader_who_has_enough_ends_it_quietly() -> None:
    command = f"{sys.executable} -m baracuda ops | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("op ")
    assert done.returncode in (0, 141)


def test_an_option_may_be_a_shape(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["explain", "gather_backward", "--shapes", "6x4,6x4", "--option", "axis=0"]
    assert "dsrc float32[9, 4]" in said(capsys, *argv, "src_shape=9x4")


PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
SHOWN = dict(
    re.findall(r"```console\n\$ python -m baracuda (.+)\n((?:.*\n)*?)```", PAGE.read_text())
)


@pytest.mark.skipif(not unavailable(), reason="the page is of a machine without a GPU")
# What these do takes seconds, and other tests of the commands do less of it.
@pytest.mark.parametrize(
    "command", lanes.cases(SHOWN, lambda command: not re.match("parity|warmup --pack", command))
)
def test_the_page_shows_what_commands_print(
    command: str, own_cache: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Some write files where they are called.
    monkeypatch.chdir(own_cache.parent)
    text = {" ".join(words(line)) for line in said(capsys, *command.split()).splitlines()}
    # Figures differ; what has none is the same everywhere.
    lines = [
        " ".join(words(line)) for line in SHOWN[command].splitlines() if not re.search(r"\d", line)
    ]
    assert [line for line in lines if line not in text] == []
