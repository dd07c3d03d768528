// SPDX-License-Identifier: Apache-2.0
// Python's words for what C++ has types for: dtypes, shapes, tiers, hints, spaces, seconds.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "terrace/arena.h"
#include "terrace/catalog.h"
#include "terrace/tensor.h"
#include "terrace/tensor_pool.h"
#include "terrace/tensor_space.h"

namespace terrace::python {

namespace py = pybind11;

// "BF16", "bfloat16", numpy.float32, numpy.dtype("f4"), torch.bfloat16, ... Raises InvalidArgument.
DType dtype_of(py::handle given);
// An integer or a sequence of them.
Shape shape_of(py::handle given);
Strides strides_of(py::handle given, uint32_t rank);
py::tuple tuple_of(const Shape& shape);
py::tuple tuple_of(const Strides& strides, uint32_t rank);

Tier tier_of(const std::string& name);
TensorHint hint_of(py::handle name);  // None: none
GuardWait guard_wait_of(const std::string& name);
SpaceCoherence coherence_of(const std::string& name);
SpaceOwnership ownership_of(const std::string& name);
uint8_t flags_of(bool read_mostly, bool streaming, bool pinned);

// Seconds, None for ever. Raises InvalidArgument for what is negative or no number.
uint64_t nanoseconds(py::handle seconds);

// A str, bytes or os.PathLike.
std::string path_of(const py::object& given);
// A dict of strings, or None.
TensorMetadata metadata_of(const py::object& given);

// A NamedTuple of terrace/_types.py.
py::object named(const char* type, const py::dict& fields);

[[noreturn]] void raise_invalid(const std::string& text);

}  // namespace terrace::python
