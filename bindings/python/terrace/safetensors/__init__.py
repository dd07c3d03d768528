# SPDX-License-Identifier: Apache-2.0
"""Safetensors files, and models in leases, as programs of the package `safetensors` open them.

    from terrace.safetensors import safe_open

    with safe_open("terrace:llama", framework="pt") as f:         # a lease by its label; or a path
        for name in f.keys():
            tensor = f.get_tensor(name)                           # no copy

`terrace.safetensors.numpy` and `terrace.safetensors.torch` have load_file() and save_file() with the signatures of
`safetensors.numpy` and `safetensors.torch`. docs/python.md says where both packages differ.
"""

import os
from typing import Any, Dict, List, Mapping, Optional, Union

from .._errors import Error as SafetensorError
from .._errors import InvalidArgument
from .._models import open_model
from .._terrace import Lease, Model, ModelTensor, save_safetensors
from . import _frameworks

__all__ = ["SafetensorError", "load_file", "safe_open", "save_file"]

Source = Union[str, "os.PathLike[str]", Lease, Model]
_LEASE = "terrace:"


def _model(source: Source) -> Model:
    """source: "terrace:LABEL", "terrace:ID", a lease, a model, or a path."""
    if isinstance(source, Model):
        return source
    if isinstance(source, Lease):
        return Model(source)
    if isinstance(source, str) and source.startswith(_LEASE):
        label = source[len(_LEASE):]
        return open_model(int(label) if label.isascii() and label.isdigit() else label)
    os.stat(source)  # FileNotFoundError and its kin, as everybody expects them of open()
    return Model(source)


class safe_open:
    """A file, a model of several files, or a model in a lease; tensors of it as they are asked for.

    filename: a path of a safetensors file, of an index of shards (model.safetensors.index.json) or of a folder with one
    of them; "terrace:LABEL" or "terrace:ID" for a lease; a terrace.Lease or terrace.Model. framework: "np" or "pt".
    device: where torch's tensors are to be. backend: accepted; files are always mapped.
    """

    def __init__(self, filename: Source, framework: str, device: Any = "cpu", *, backend: str = "mmap"):
        self._make = _frameworks.maker(framework, device)
        if backend not in ("mmap", "pread"):
            raise InvalidArgument(f"backend {backend!r}: 'mmap' or 'pread', which are the same here")
        self._model: Optional[Model] = _model(filename)

    def _open(self) -> Model:
        if self._model is None:
            raise InvalidArgument("this file was closed")
        return self._model

    def keys(self) -> List[str]:
        """The names of all tensors, sorted."""
        return sorted(self._open().keys())

    def offset_keys(self) -> List[str]:
        """The names of all tensors, in the order of their bytes."""
        return self._open().keys()

    def metadata(self) -> Optional[Dict[str, str]]:
        """The file's __metadata__; None where there is none."""
        return self._open().metadata or None

    def get_tensor(self, name: str) -> Any:
        """The tensor, without a copy where the device is the host. Raises terrace.NotFound."""
        return self._make(self._open()[name])

    def get_tensors(self) -> Dict[str, Any]:
        """All tensors by name, as get_tensor() gives them."""
        return {name: self._make(tensor) for name, tensor in self._open().items()}

    def get_slice(self, name: str) -> "Slice":
        """What gives parts of the tensor when it is indexed. Raises terrace.NotFound."""
        return Slice(self._open()[name], self._make)

    def __enter__(self) -> "safe_open":
        """The file itself."""
        return self

    def __exit__(self, *args: Any) -> None:
        """Closes it; tensors that were taken out stay."""
        self._model = None

    def __reduce__(self) -> Any:
        raise TypeError("safe_open is not pickled; pickle terrace.Model, which other processes open by reference")


class Slice:
    """A tensor of a file, of which parts are taken by indexing: integers, slices and `...`."""

    def __init__(self, tensor: ModelTensor, make: Any):
        self._tensor, self._make = tensor, make

    def get_shape(self) -> List[int]:
        """Elements a dimension."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """As the format names it: "F32", "BF16"."""
        return self._tensor.dtype

    def __getitem__(self, key: Any) -> Any:
        """The part, without a copy where the device is the host. Raises terrace.InvalidArgument."""
        try:
            return self._make(self._tensor[key])
        except (IndexError, TypeError, BufferError) as error:
            raise InvalidArgument(f"slicing failed: {error}") from error


def load_file(filename: Source, framework: str = "np", device: Any = "cpu", *, backend: str = "mmap") -> Dict[str, Any]:
    """All tensors by name, without a copy where the device is the host. Arguments as safe_open's."""
    with safe_open(filename, framework, device, backend=backend) as file:
        return file.get_tensors()


def save_file(tensors: Mapping[str, Any], filename: Union[str, "os.PathLike[str]"],
              metadata: Optional[Dict[str, str]] = None) -> None:
    """Writes numpy arrays, torch tensors and Terrace's tensors to a safetensors file.

    The file appears whole or not at all: it is written beside its name, synced and renamed. Arrays that do not lie in a
    row are copied; torch tensors are refused then (ValueError), as by the package safetensors."""
    with _frameworks.Described() as described:
        save_safetensors(filename, [described.add(name, tensor) for name, tensor in tensors.items()], metadata)


from . import numpy, torch  # noqa: E402,F401  # modules of these names; neither package is imported by them
