"""`train --distributed`: the same loss curve as one process, under DDP and FSDP2, from torchrun."""

import functools
import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import lanes
import numpy as np
import pytest
from forks import printed

from baracuda.__main__ import main
from baracuda.examples.charlm import Config
from baracuda.tools import train

torch = pytest.importorskip("torch")
dist = torch.distributed
if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("torch has no torch.distributed with gloo", allow_module_level=True)

STEPS = 12


def torchrun(processes, *arguments):
    """What so many processes of a program print, once they have ended well."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes),
         "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *arguments],
        capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def single():
    """The curves of one process that trains by hand-written backward passes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    text = train.python_reference()
    xp = importlib.import_module(train.NAMESPACES["torch"])
    yield lambda steps: train.fit(xp, text, Config(text.vocabulary), steps=steps)
    torch.set_num_threads(threads)


_full = functools.partial(pytest.param, marks=pytest.mark.full)


@pytest.mark.parametrize(
    ("processes", "arguments"),
    [
        (2, ["fsdp", "--steps", f"{STEPS}", "--device", "cpu"]),
        _full(2, ["ddp", "--steps", f"{STEPS}", "--device", "cpu"]),
        _full(4, ["fsdp", "--steps", f"{STEPS}"]),
        _full(2, ["--seconds", "0.2"]),
    ][: None if lanes.FULL else 1],
)
def test_the_curves_are_those_of_one_process(processes, arguments, single, tmp_path):
    record = tmp_path / "curves.json"
    command = ["train", "--json", str(record), "--distributed", *arguments]
    if lanes.FULL:
        out = torchrun(processes, "-m", "baracuda", *command)
    else:
        program = tmp_path / "train.py"
        program.write_text("import sys, baracuda.__main__ as b; sys.exit(b.main(sys.argv[1:]))")
        out = printed(program, *command, ranks=processes)
    curves = json.loads(record.read_text())
    steps = len(curves["losses"])
    assert steps == STEPS if "--steps" in arguments else steps >= 1
    alone = single(steps)
    np.testing.assert_allclose(curves["losses"], alone.losses, rtol=0, atol=1e-4)
    np.testing.assert_allclose(curves["validations"], alone.validations, rtol=0, atol=1e-4)
    # One process speaks, and says what ran: the explicit gradients, by plans made once.
    engine = "fsdp" if "fsdp" in arguments else "ddp"
    assert out.count(f"processes        {processes}, {engine} over gloo") == 1
    assert out.count("nats per character    .") == 1
    assert f", 0 in the {steps - 1} after it" in out
    for op in ("embedding", "rope", "swiglu"):
        assert f"autograd  {op}_backward[f32" in out


GRADIENTS = """
import sys
import numpy as np, torch
from baracuda.examples.charlm import Config, Plans, initial_weights, loss_and_gradient, loss_of
from baracuda.examples.torch import joined, place

config, rng = Config(11, context=8, batch=4, width=16, heads=2, hidden=24), np.random.default_rng(5)
weights = {k: torch.tensor(w) for k, w in initial_weights(config, rng).items()}
rows = rng.integers(0, 11, (2, 4, 8)).astype(np.int32)
flat = lambda x: torch.tensor(x.reshape(-1))
loss, gradient = loss_and_gradient(weights, *map(flat, rows), config, Plans())
with joined(sys.argv[1], place("cpu", config.batch)) as ranks:
    kept, watched = ranks.share(weights, loss_of)
    for _ in range(2):  # nothing of the first time may be left in the second
        value, share = watched(kept, *[flat(ranks.mine(x)) for x in rows], config, Plans())
    torch.testing.assert_close(ranks.mean([value]), [float(loss)])
    torch.testing.assert_close(ranks.whole(share), gradient)
    torch.testing.assert_close(ranks.whole(kept), weights)
    shards = [kept[k].shape[0] / w.shape[0] for k, w in weights.items()]
    assert all(s < 1 for s in shards) if sys.argv[1] == "fsdp" else set(shards) == {1}, shards
    assert ranks.most(ranks.rank) == 1
"""


# Adam hides the scale of a gradient, so the curves do not show it.
@pytest.mark.parametrize("engine", lanes.cases(["ddp", "fsdp"], "ddp".__eq__))
def test_the_gradient_is_that_of_the_whole_batch(engine, tmp_path):
    script = tmp_path / "gradients.py"
    script.write_text(GRADIENTS)
    printed(script, engine, ranks=2)


@pytest.fixture
def as_from_torchrun(monkeypatch):
    """A process that believes to be the first of some."""

    def pretend(size):
        with socket.socket() as listening:
            listening.bind(("localhost", 0))
            port = listening.getsockname()[1]
        for name, value in {
            "RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
            "MASTER_ADDR": "localhost", "MASTER_PORT": port,
        }.items():  # fmt: skip
            monkeypatch.setenv(name, str(value))

    return pretend


@pytest.mark.parametrize(
    ("size", "arguments", "message"),
    [
        (0, [], "--distributed: no RANK in the environment; start it as torchrun "
         "--nproc-per-node 2 -m baracuda train --distributed"),
        (2, ["--xp", "numpy"], "--distributed goes with --xp torch, got --xp numpy"),
        (3, [], "--distributed: 3 processes cannot share a batch of 8 rows equally"),
        (2, ["--device", "cuda"], "--distributed: 2 processes need as many GPUs, this host has 1"),
        (2, ["--device", "cuda:0"], "--device cpu or cuda, one GPU for each process; got cuda:0"),
    ],
)  # fmt: skip
def test_what_processes_lack_is_told_in_one_line(
    size, arguments, message, as_from_torchrun, capsys, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("RANK", raising=False)
    if size:
        as_from_torchrun(size)
    assert main(["train", "--steps", "1", "--distributed", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("baracuda train: --distributed")
    assert err.endswith(f"{message}\n")
    assert err.count("\n") == 1
    # The others are silent for as long as torchrun needs to end them.
    waited = []
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(train.time, "sleep", waited.append)
    assert main(["train", "--steps", "1", "--distributed", *arguments]) == 2
    assert waited == [train.PATIENCE]


def test_a_torch_without_processes_is_told(capsys, monkeypatch):
    monkeypatch.setattr(dist, "is_available", lambda: False)
    assert main(["train", "--distributed"]) == 2
    assert "needs a torch that has torch.distributed" in capsys.readouterr().err


def test_the_group_ends_with_an_error(as_from_torchrun, monkeypatch):
    def fail(*arguments, team, **options):
        assert dist.is_initialized()
        assert (team.size, team.first) == (1, True)
        raise KeyError("in the middle")

    as_from_torchrun(1)
    monkeypatch.setattr(train, "fit", fail)
    with pytest.raises(KeyError, match="in the middle"):
        main(["train", "--distributed", "fsdp"])
    assert not dist.is_initialized()
