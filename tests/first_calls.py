"""A program: what the first call of every form of every op costs a new process on a GPU.

`python -m baracuda warmup` first; then `PYTHONPATH=. python tests/first_calls.py [DTYPE ...]`, a
process for each dtype. Says which calls take longer than a warm cache should let them.
"""

import gc
import subprocess
import sys
import time
from statistics import median

LIMIT = 10.0  # ms


def measure(dtype: str) -> None:
    import torch

    from baracuda.calls.op import registry
    from baracuda.testing.cases import Subject

    # What a process loads once, torch for its own calls and we for ours, is of no op.
    ones = torch.ones(8, 8, device="cuda", dtype=torch.float64)
    registry["relu"](ones @ ones)
    # Nor is a collection of what others left.
    gc.disable()
    found: dict[str, float] = {}
    for name in registry:
        if dtype not in registry[name].spec.dtypes:
            continue
        for call in Subject(name, "cuda", "torch", dtype, "cuda").calls():
            arrays = call.given()
            torch.cuda.synchronize()
            start = time.perf_counter()
            registry[name](*arrays, **call.options)
            torch.cuda.synchronize()
            # A form's cases may have kernels of their own, so each is a first call.
            found[f"{name}: {call.form.text} {dict(call.case.axes)} {call.options}"] = (
                time.perf_counter() - start
            ) * 1e3
    for label, ms in sorted(found.items(), key=lambda item: -item[1]):
        if ms > LIMIT:
            print(f"{ms:8.1f} ms  {label}")
    times = list(found.values())
    print(
        f"{dtype}: {len(times)} first calls, median {median(times):.2f} ms, largest "
        f"{max(times):.1f}, {sum(t > LIMIT for t in times)} above {LIMIT:.0f}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-this-process"]:
        measure(sys.argv[2])
    else:
        for dtype in sys.argv[1:] or ["float32", "bfloat16"]:
            subprocess.run([sys.executable, __file__, "--in-this-process", dtype], check=True)
