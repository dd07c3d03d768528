# SPDX-License-Identifier: Apache-2.0
"""Elements of tensors as Python's numbers, and numbers into tensors; called by the C++ part (elements.h).

numpy has no BF16 and no floats of eight bits: their bits become numbers here, and numbers their bits."""

import functools
import math
import sys
from typing import Any

from ._errors import InvalidArgument, Unsupported
from ._terrace import ModelTensor, Tensor

# Of eight-bit floats: bits of the exponent, its bias, and whether the format has infinities and a negative zero.
_SHARED_BYTES = ("F4", "F6_E2M3", "F6_E3M2")
_EIGHT_BITS = {
    "F8_E4M3": (4, 7, False), "F8_E5M2": (5, 15, True), "F8_E4M3FNUZ": (4, 8, False), "F8_E5M2FNUZ": (5, 16, False),
    "F8_E8M0": (8, 127, False),
}


def _eight_bit_value(dtype: str, bits: int) -> float:
    exponent_bits, bias, infinities = _EIGHT_BITS[dtype]
    if dtype == "F8_E8M0":
        return math.nan if bits == 255 else math.ldexp(1.0, bits - bias)
    if dtype.endswith("FNUZ"):
        if bits == 0x80:
            return math.nan
    elif dtype == "F8_E4M3" and bits & 0x7f == 0x7f:
        return math.nan
    mantissa_bits = 7 - exponent_bits
    sign = -1.0 if bits & 0x80 else 1.0
    exponent, mantissa = (bits & 0x7f) >> mantissa_bits, bits & ((1 << mantissa_bits) - 1)
    if infinities and exponent == (1 << exponent_bits) - 1:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)


@functools.lru_cache(maxsize=None)
def _table(dtype: str) -> Any:
    import numpy
    return numpy.array([_eight_bit_value(dtype, bits) for bits in range(256)], "float32")


def numbers(tensor: Any) -> Any:
    """A numpy array of its numbers: its memory where numpy has the type, else a copy as float32."""
    array = tensor.numpy()
    if tensor.dtype == "BF16":
        import numpy
        return numpy.left_shift(array, 16, dtype="uint32").view("float32")
    if tensor.dtype in _EIGHT_BITS:
        return _table(tensor.dtype)[array]
    if tensor.dtype in _SHARED_BYTES:
        raise Unsupported(f"elements of {tensor.dtype} share bytes: numpy() has the bytes")
    return array


def item(tensor: Any) -> Any:
    """The number of a tensor of one element."""
    if tensor.size != 1:
        raise ValueError(f"tensor {tensor.name!r} has {tensor.size} elements: item() and conversions to a number are of one")
    return numbers(tensor).reshape(()).item()


def as_index(tensor: Any) -> int:
    """As item(), of integer scalars only, as numpy's: bytes() takes what is none for a buffer."""
    if tensor.dtype[0] not in "IU" or tensor.ndim != 0:
        raise TypeError(f"only integer scalars are indices, not {tensor.dtype} of {tensor.ndim} dimensions")
    return item(tensor)


def tolist(tensor: Any) -> Any:
    """Its numbers as nested lists."""
    return numbers(tensor).tolist()


def contains(tensor: Any, number: Any) -> bool:
    """Whether some element is the number, as numpy's `in`."""
    return bool((numbers(tensor) == number).any())


def iterate(tensor: Any) -> Any:
    """Views of its first dimension, one after the other."""
    if tensor.ndim == 0:
        raise TypeError(f"tensor {tensor.name!r} is a scalar, which cannot be iterated over")
    return (tensor[index] for index in range(len(tensor)))


def assign(tensor: Any, value: Any) -> None:
    """tensor[...] = value, of numbers, arrays and tensors that broadcast to its shape."""
    if isinstance(value, (Tensor, ModelTensor)):
        tensor.numpy()[...] = value.numpy() if value.dtype == tensor.dtype else _bits(tensor, numbers(value))
        return
    if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        tensor.torch().copy_(value.detach().expand(tensor.shape))
        return
    tensor.numpy()[...] = _bits(tensor, value)


def _bits(tensor: Any, value: Any) -> Any:
    if tensor.dtype in _SHARED_BYTES:
        raise Unsupported(f"elements of {tensor.dtype} share bytes: store to those of numpy()")
    return _encoded(tensor, value) if tensor.dtype == "BF16" or tensor.dtype in _EIGHT_BITS else value


def create_from(pool: Any, source: Any, dtype: Any, options: Any) -> Any:
    """TensorPool.create_from(): a tensor of the pool with the numbers of an array, a tensor or nested lists."""
    if dtype is None:
        dtype = getattr(source, "dtype", None)
    if dtype is None or not hasattr(source, "shape"):
        import numpy
        source = numpy.asarray(source)
        dtype = source.dtype if dtype is None else dtype
    made = pool.create(tuple(source.shape), dtype, **options)
    if made.size:
        assign(made, source)
    return made


def _encoded(tensor: Any, value: Any) -> Any:
    import numpy
    given = numpy.asarray(value)
    dtype = tensor.dtype
    if given.dtype.name in ("bfloat16", *(name.lower() for name in _EIGHT_BITS)) or given.dtype.kind == "V":
        given = given.astype("float32")  # ml_dtypes'
    if given.dtype == tensor.numpy().dtype:
        raise InvalidArgument(f"{given.dtype} for {dtype}: are these numbers or the bits of some? "
                              "Store bits to numpy()[...], numbers as floats or Python's")
    wide = given.astype("float32")
    if dtype == "BF16":
        bits = wide.view("uint32") if wide.ndim else wide.reshape(1).view("uint32").reshape(())
        rounded = (bits + (0x7fff + ((bits >> 16) & 1)).astype("uint32")) >> 16  # to the nearest, ties to even
        return numpy.where(numpy.isnan(wide), (bits >> 16) | 0x40, rounded).astype("uint16")
    return _nearest(dtype, wide)


def _nearest(dtype: str, wide: Any) -> Any:
    """The bits of the value of an eight-bit float nearest to each number: ties to the even mantissa, beyond the largest
    one infinity or NaN."""
    import numpy
    table = _table(dtype)
    finite = numpy.array([bits for bits in range(256) if math.isfinite(table[bits]) and not (table[bits] == 0 and bits)], "int64")
    finite = finite[numpy.argsort(table[finite], kind="stable")]
    values = table[finite].astype("float64")
    flat = wide.astype("float64").reshape(-1)
    place = numpy.searchsorted(values, flat).clip(1, len(values) - 1)
    below, above = flat - values[place - 1], values[place] - flat
    up = (above < below) | ((above == below) & (finite[place] % 2 == 0))
    bits = finite[numpy.where(up, place, place - 1)]
    top = values[-1] + (values[-1] - values[-2]) / 2  # a tie with what would come next, which is even if the largest is odd
    not_a_number = {"F8_E4M3": 0x7f, "F8_E5M2": 0x7e, "F8_E8M0": 0xff}.get(dtype, 0x80)
    beyond_top = numpy.greater_equal if finite[-1] % 2 else numpy.greater
    negative = numpy.zeros_like(flat, bool) if dtype == "F8_E8M0" else beyond_top(-flat, top)
    for beyond, sign in ((beyond_top(flat, top), 0), (negative, 0x80)):
        bits = numpy.where(beyond, 0x7c | sign if dtype == "F8_E5M2" else not_a_number, bits)
    wrong = numpy.isnan(flat) if dtype != "F8_E8M0" else numpy.isnan(flat) | (flat < 0)
    bits = numpy.where(wrong, not_a_number, bits)
    if dtype in ("F8_E4M3", "F8_E5M2"):
        bits = numpy.where((flat == 0) & numpy.signbit(flat), 0x80, bits)
    return bits.astype("uint8").reshape(wide.shape)
