# SPDX-License-Identifier: Apache-2.0
"""load_file() and save_file() with the signatures of safetensors.torch; a model in a lease is "terrace:LABEL"."""

import os
from typing import Any, Dict, Optional, Union

from . import Source
from . import load_file as _load
from . import save_file as _save

__all__ = ["load_file", "save_file"]


def load_file(filename: Source, device: Any = "cpu", *, backend: str = "mmap") -> Dict[str, Any]:
    """All tensors by name as torch tensors, without a copy where the device is the host. filename: as safe_open's."""
    return _load(filename, "pt", device, backend=backend)


def save_file(tensors: Dict[str, Any], filename: Union[str, "os.PathLike[str]"],
              metadata: Optional[Dict[str, str]] = None) -> None:
    """As terrace.safetensors.save_file()."""
    _save(tensors, filename, metadata)
