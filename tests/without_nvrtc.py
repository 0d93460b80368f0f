"""Plans of ops where NVRTC cannot be had: some whose kernels are in a wheel, some whose are not.

Started by test_kernel_wheels.py with the wheel on the path of imports, or without it. Prints JSON.
"""

from __future__ import annotations

import importlib.metadata
import json
from typing import Any

import cuda.pathfinder as pathfinder
import pytest


def hide_nvrtc() -> list[str]:
    """As where nvidia-cuda-nvrtc is not installed; who asks for it nevertheless is listed."""
    version, load = importlib.metadata.version, pathfinder.load_nvidia_dynamic_lib
    asked: list[str] = []

    def hidden(name: str) -> str:
        if name == "nvidia-cuda-nvrtc":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    def absent(name: str, *rest: Any) -> Any:
        if name == "nvrtc":
            asked.append(name)
            raise pathfinder.DynamicLibNotFoundError("there is no NVRTC")
        return load(name, *rest)

    importlib.metadata.version = hidden
    pathfinder.load_nvidia_dynamic_lib = absent
    return asked


def main() -> dict[str, Any]:
    """What is planned, and where its code is from."""
    asked = hide_nvrtc()
    import stub_device
    import torch

    import baracuda as bc
    from baracuda.backends import cuda
    from baracuda.errors import UnsupportedError
    from baracuda.tools import doctor

    unavailable = cuda.unavailable() or ""
    device = stub_device.install(pytest.MonkeyPatch())
    from baracuda.backends.cuda import compiler, launch

    codes: list[bytes] = []

    def loaded(entry: Any, facts: Any, shared: int) -> Any:
        codes.append(compiler.cubin(entry, facts.arch))
        return entry

    launch.loaded = loaded
    x, y = torch.zeros(48, 256), torch.zeros(48, 128)
    plan, other = bc.swiglu.plan(x), bc.mish.plan(x)
    out: dict[str, Any] = {
        "unavailable": unavailable,
        "swiglu": json.loads(plan.sku.to_json()),
        "mish": [other.sku.backend, dict(other.why).get("cuda")],
    }
    if plan.sku.backend == "cuda":
        plan(x)
    try:
        bc.mish(y, backend="cuda")
    except UnsupportedError as error:
        out["forced"] = str(error)
    elf = [code[:4] == b"\x7fELF" for code in codes]
    doctors = [list(line) for line in doctor.packed()]
    return out | {
        "elf": elf, "asked": asked, "doctor": doctors, "launched": len(device.launched)
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main()))
