# SPDX-License-Identifier: Apache-2.0
"""Tensors as numpy's and torch's, and back into bytes."""

import contextlib
import ctypes
import sys
from typing import Any, Callable, List, Optional, Tuple

from .._errors import InvalidArgument, Unsupported
from .._terrace import ModelTensor, SharedTensor, Tensor

# What numpy itself has no type for, by the names of the package ml_dtypes.
_ML_DTYPES = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}
_NUMPY = ("np", "numpy")
_TORCH = ("pt", "torch", "pytorch")


def maker(framework: str, device: Any) -> Callable[[ModelTensor], Any]:
    """What makes the framework's tensor on the device. Raises InvalidArgument."""
    if framework in _TORCH:
        return lambda tensor: as_torch(tensor, device)
    if framework not in _NUMPY:
        raise InvalidArgument(f"framework {framework!r}: 'np' or 'pt'; jax and others take what 'np' gives")
    if str(device) != "cpu":
        raise InvalidArgument(f"device {device!r}: numpy has tensors on 'cpu' only")
    return as_numpy


def _packed(tensor: ModelTensor) -> Optional[Tuple[int, ...]]:
    """The shape of F4's bytes, two elements each; None for other types, and where a row does not fill bytes."""
    shape = tensor.shape
    return (*shape[:-1], shape[-1] // 2) if tensor.dtype == "F4" and shape and shape[-1] % 2 == 0 else None


def as_numpy(tensor: ModelTensor) -> Any:
    """Of types that numpy has not: ml_dtypes' where that is installed, else unsigned integers of the same size."""
    array = tensor.numpy()
    name = _ML_DTYPES.get(tensor.dtype)
    if name:
        try:
            import ml_dtypes
        except ImportError:
            return array
        kind = getattr(ml_dtypes, name, None)
        return array if kind is None else array.view(kind)
    packed = _packed(tensor)
    return array if packed is None else array.reshape(packed)


def as_torch(tensor: ModelTensor, device: Any) -> Any:
    """Of types that this torch has not: uint8 for eight bits and less, else an error that says so."""
    try:
        made = tensor.torch(unmarked=True)
    except ImportError as error:
        raise Unsupported(f"framework 'pt' needs torch: {error}") from error
    packed = _packed(tensor)
    if packed is not None:
        made = made.reshape(packed)
        kind = getattr(sys.modules["torch"], "float4_e2m1fn_x2", None)
        made = made if kind is None else made.view(kind)
    return made if str(device) == "cpu" else made.to(device)


class Described:
    """Tensors of any kind as (name, dtype, shape, buffer); they keep their place until this ends."""

    def __init__(self) -> None:
        self._kept = contextlib.ExitStack()

    def __enter__(self) -> "Described":
        """Itself."""
        return self

    def __exit__(self, *args: Any) -> None:
        """Lets go of the tensors."""
        self._kept.close()

    def add(self, name: str, tensor: Any) -> Tuple[str, str, Any, Any]:
        """Raises InvalidArgument for what is no tensor, ValueError for torch tensors that do not lie in a row."""
        if not isinstance(name, str):
            raise InvalidArgument(f"tensors: {name!r} is no name")
        if isinstance(tensor, Tensor):
            guard = tensor.read(hold=True)  # its bytes stay where the disk reads them
            self._kept.callback(guard.close)
        if isinstance(tensor, SharedTensor):
            return name, tensor.dtype, tensor.shape, tensor.read(wait=None)[0]
        if isinstance(tensor, (Tensor, ModelTensor)):
            return name, tensor.dtype, tensor.shape, _in_a_row(tensor)
        if type(tensor).__module__.partition(".")[0] == "torch" or "torch" in sys.modules and isinstance(
                tensor, sys.modules["torch"].Tensor):
            return self._torch(name, tensor)
        return _numpy(name, tensor)

    def _torch(self, name: str, tensor: Any) -> Tuple[str, str, Any, Any]:
        torch = sys.modules["torch"]
        if tensor.layout != torch.strided:
            raise ValueError(f"tensor {name!r} is {tensor.layout}: make it dense first, with to_dense()")
        if not tensor.is_contiguous():
            raise ValueError(f"tensor {name!r} does not lie in a row: call contiguous() on it first")
        tensor = tensor.detach().to("cpu")
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        self._kept.callback(tensor.element_size)  # keeps it
        dtype, shape = str(tensor.dtype).rpartition(".")[2], list(tensor.shape)
        if dtype == "float4_e2m1fn_x2":
            dtype, shape[-1:] = "F4", [2 * shape[-1]] if shape else []
        length = tensor.numel() * tensor.element_size()
        return name, dtype, shape, (ctypes.c_ubyte * length).from_address(tensor.data_ptr()) if length else b""


def _in_a_row(tensor: Any) -> Any:
    view = memoryview(tensor)
    return view if view.c_contiguous else view.tobytes()


def _numpy(name: str, tensor: Any) -> Tuple[str, str, Any, Any]:
    try:
        import numpy
    except ImportError as error:
        raise Unsupported(f"tensor {name!r} of {type(tensor).__name__}: numpy is needed: {error}") from error
    array = numpy.asarray(tensor)
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.byteswap()
    shape: List[int] = list(array.shape)
    if array.dtype.hasobject or array.dtype.names:
        raise InvalidArgument(f"tensor {name!r}: no numbers, but {array.dtype}")
    return name, array.dtype.name, shape, numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
