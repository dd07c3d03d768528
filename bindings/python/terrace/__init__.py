# SPDX-License-Identifier: Apache-2.0
"""Terrace: tensors across DDR and CXL memory, for numpy, torch and whatever else takes memory without a copy.

    import terrace

    session = terrace.Session()
    lease = session.grant(1 << 30)
    pool = terrace.TensorPool(session, [lease], ddr_bytes=256 << 20)
    weight = pool.create((4096, 4096), "bfloat16", name="w0", hint="weights")
    weight.torch().normal_()          # or weight.numpy(): the same memory

docs/python.md of the sources says what keeps what alive, and what numpy sees of types that it does not have.
"""

from . import kv, safetensors  # noqa: F401
from ._errors import *  # noqa: F401,F403
from ._errors import __all__ as _errors_all
from ._models import import_model, open_model
from ._terrace import (
    Checkpoint, CheckpointDirectory, Device, DeviceGuard, Guard, Lease, Mapping, Model, ModelTensor, Move, Session, SharedPin, SharedTensor, SharedWrite, Tensor, TensorPool, TensorSpace,
    __version__,
)
from ._types import *  # noqa: F401,F403
from ._types import __all__ as _types_all

__all__ = [
    "Checkpoint", "CheckpointDirectory", "Device", "DeviceGuard", "Guard", "Lease", "Mapping", "Model", "ModelTensor", "Move", "Session", "SharedPin", "SharedTensor", "SharedWrite", "Tensor",
    "TensorPool", "TensorSpace", "__version__", "import_model", "kv", "open_model", "safetensors", *_errors_all, *_types_all,
]
