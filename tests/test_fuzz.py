"""Random calls of every op against formulas that are not its body, and that the fuzzer would tell.

``make fuzz N=100000`` tries more of them; `tests/fuzz` says what a case is.
"""

from __future__ import annotations

import subprocess
import sys

import lanes
import numpy as np
import pytest
import torch
from fuzz import check, draw, illegal, layouts, moves, room
from fuzz.__main__ import main

CASES, CHUNKS = (2000, 8) if lanes.FULL else (1000, 4)


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads cost small arrays more than they save, and `check.block` leaves torch with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_calls_are_what_formulas_of_others_say(chunk):
    size = CASES // CHUNKS
    tally = check.block(20, range(chunk * size, (chunk + 1) * size), "cpu")
    assert not tally.failures, "\n".join(f"{op} {n}: {text}" for n, op, text in tally.failures)
    assert len(tally.ops) == len(draw.OPS)
    assert sum(tally.kinds.values()) > 5 * size


def test_a_case_is_wholly_given_by_its_seed_and_number():
    for number in range(60):
        one, other = (draw.case(3, number) for _ in range(2))
        assert str(one) == str(other)
        for name, memory in one.arrays.items():
            assert memory.values().tobytes() == other.arrays[name].values().tobytes()
    assert str(draw.case(4, 0)) != str(draw.case(3, 0))


def test_cases_reach_what_they_are_for():
    cases = [draw.case(0, n) for n in range(1500)]
    memories = [m for c in cases for m in c.arrays.values()]
    assert {len(m.layout.shape) for m in memories} >= set(range(9))
    assert {c.library for c in cases} >= {"numpy", "torch", "array_api_strict"}
    for reached in (
        lambda m: 0 in m.layout.shape,
        lambda m: 0 in m.layout.strides,
        lambda m: min(m.layout.strides, default=0) < 0,
        lambda m: not m.layout.apart and 0 not in m.layout.strides,
        lambda m: m.layout.offset % 2,
        lambda m: m.layout.skew,
    ):
        assert sum(map(bool, map(reached, memories))) > 20


def _failures(numbers):
    tally = check.Tally()
    for number in numbers:
        check.one(0, number, tally=tally)
    return tally.failures


def test_a_result_that_is_wrong_by_a_part_in_fifty_fails_for_every_op(monkeypatch):
    exact, taken = room.expected, moves.gather
    monkeypatch.setattr(room, "expected", lambda *a: [x * 1.02 for x in exact(*a)])
    monkeypatch.setattr(moves, "gather", lambda *a: np.flip(taken(*a)))
    missed = set(draw.OPS)
    for turn in range(0, 40 * len(draw.OPS), len(draw.OPS)):
        at = [turn + i for i, op in enumerate(draw.OPS) if op in missed]
        missed -= {op for _, op, text in _failures(at) if "expected" in text}
    assert not missed


def test_an_error_that_is_not_ours_and_one_that_names_no_op_fail(monkeypatch):
    numbers = range(200)
    assert not _failures(numbers)
    monkeypatch.setattr(illegal, "BaracudaError", ZeroDivisionError)
    assert sum("a raw" in text for _, _, text in _failures(numbers)) > 10


def test_bytes_beside_the_elements_are_seen():
    layout = layouts.Layout((2, 3), (8, 2), 1, 15)
    memory = layouts.Memory(layout, "float32", "numpy", "cpu", np.ones)
    memory.array[...] = 2
    assert memory.unharmed(elements_too=False)
    assert not memory.unharmed()
    for place in (0, layouts.GUARD, layouts.GUARD + 2 * 4, -1):
        memory.raw[place] ^= 1
        assert not memory.unharmed(elements_too=False)
        memory.raw[place] ^= 1
    assert memory.unharmed(elements_too=False)


def test_the_command_counts_and_says_how_to_repeat_a_failure(monkeypatch, capsys):
    assert main(["--cases", str(len(draw.OPS))]) == 0
    said = capsys.readouterr().out
    assert f"of {len(draw.OPS)} ops" in said
    assert "0 failures" in said
    assert "\nguards " in said
    monkeypatch.setattr(illegal, "BaracudaError", ZeroDivisionError)
    assert main(["--cases", str(len(draw.OPS)), "--seed", "3"]) == 1
    said = capsys.readouterr().out
    (again, *_) = [line for line in said.splitlines() if "--case " in line]
    assert main(again.split()[3:]) == 1
    assert "1 comparisons of 1 ops" in capsys.readouterr().out


@pytest.mark.full
def test_several_processes_share_the_cases():
    """A worker imports what it runs, which a package's own `__main__` is not."""
    command = [sys.executable, "-m", "tests.fuzz", "--cases", "210", "--jobs", "2"]
    done = subprocess.run(command, cwd=lanes.ROOT, capture_output=True, text=True)
    assert f"of {len(draw.OPS)} ops" in done.stdout, done.stderr


def test_the_command_takes_ops(capsys):
    assert main(["--cases", str(2 * len(draw.OPS)), "--ops", "relu", "lerp"]) == 0
    assert "comparisons of 2 ops" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--ops", "reluu"])
