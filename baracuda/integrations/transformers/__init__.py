"""Models of Hugging Face's transformers, patched so that they train and run on baracuda's ops."""

from baracuda.integrations.transformers.mapping import mapping
from baracuda.integrations.transformers.patching import KINDS, Report, patch, unpatch

__all__ = ["KINDS", "Report", "mapping", "patch", "unpatch"]
