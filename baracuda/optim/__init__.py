"""torch optimisers whose step is one launch for all parameters of a dtype.

`AdamW` and `SGD` are subclasses of torch's: constructor, parameter groups and ``state_dict`` are
theirs, so one line can be swapped and checkpoints load both ways. `Lion` is as its paper has it.
``import baracuda`` does not import it; asking for ``baracuda.optim`` does.
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "baracuda.optim needs torch: pip install 'baracuda[torch]'", name="torch"
    ) from None

from baracuda.optim.steps import SGD, AdamW, Lion

__all__ = ["SGD", "AdamW", "Lion"]
