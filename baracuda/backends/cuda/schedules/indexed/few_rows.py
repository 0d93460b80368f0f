"""Sums of the rows that an index names, for these rows alone, in the order of their numbers.

The distinct rows are marked and numbered. Then each of them is a sum by lists, of entries that have
the numbers in the place of the rows.
"""

from __future__ import annotations

from math import prod

from baracuda.backends.cuda.geometry import Packer, View
from baracuda.backends.cuda.launch_plan import Call, Step, Steps, Zero, blocks
from baracuda.backends.cuda.schedules.indexed.lists import Sums
from baracuda.backends.cuda.schedules.indexed.tiles import Lanes
from baracuda.backends.cuda.schedules.indexed.work import Work
from baracuda.declaration.dtypes import named

_NAME = "few rows"
# cuda_src/indexed/few_rows.cuh: threads of a block that numbers rows, and how many blocks do.
_THREADS, _BLOCKS = 512, 256
_BITS = 32


def plan(call: Call) -> Steps:
    """Number the distinct rows, then add up what each of them has."""
    rows, out = call.out(0), call.out(1)
    many, columns = out.shape
    if not many:
        return Steps((), variant=_NAME)
    work = Work(call)
    numbers = _numbered(work, rows)
    if columns:
        (values,) = (x.name for x in call.problem.given if x.name not in call.problem.spec.discrete)
        given = work.given(values)
        add = call.adds[1]
        made = work.target(out, add)
        lanes = Lanes(
            True, [], columns, many, many, (columns, 1, columns), 0, (given, numbers, made)
        )
        # What is out of range was reported by its own number.
        work.call = call._replace(listener=0)
        work.invert(lanes, ahead=True)
        work.call = call
        to, scalars = "" if made is out else work.wide, call.problem.spec.codes
        work.add_up(lanes, Sums(call.problem.dtype, call.functor, to, scalars=scalars))
        work.deliver(made, out, add)
    return work.done(_NAME)


def _numbered(work: Work, rows: View) -> View:
    """Bring the distinct rows to their place; the number of the row of each entry."""
    call, problem = work.call, work.call.problem
    (name,) = problem.spec.indices
    line, kind = work.line(name), named(problem.index_dtype or "")
    many, extent = prod(line.shape), problem.extent_of(name)
    words = max(-(-extent // _BITS), 1)
    each = -(-words // min(-(-words // _THREADS), _BLOCKS))
    grid = -(-words // each)
    bits, before, counts = (work.room((n,), "int32") for n in (words, words, grid))
    numbers = work.room((many,), problem.index_dtype or "")
    skipped = problem.options["padding_idx"]

    wide = named(problem.outputs[0].dtype).short
    of_entries = Packer(False).pointers(4).add("Q", call.listener)
    of_entries.add("q", extent, -1 if skipped is None else skipped)
    of_entries.add("i", line.strides[0] * kind.itemsize).add("I", many, call.ticket, 0)
    of_words = Packer(False).pointers(4).add("q", rows.strides[0], extent)
    of_words.add("I", words, each, many, 0)

    def launch(name: str, short: str, packer: Packer, grid: int, *views: View) -> None:
        arguments, threads = packer.done(), _THREADS if packer is of_words else 0
        entry = call.entry(f"{name}<{short}>", len(arguments), name.lower(), short, threads=threads)
        work.steps.append(Step(entry, (grid, 1), arguments, [(v.slot, 0) for v in views]))

    entries, marks = (line, bits, before, numbers), (bits, counts, before, rows)
    work.steps.append(Zero(bits.slot, 4 * words))
    launch("MarkRows", kind.short, of_entries, blocks(many), *entries)
    launch("CountRows", wide, of_words, grid, *marks)
    launch("NumberRows", wide, of_words, grid, *marks)
    launch("RenumberRows", kind.short, of_entries, blocks(many), *entries)
    return numbers
