// SPDX-License-Identifier: Apache-2.0
// What integers, slices, `...` and None pick of a tensor: the view's shape, strides and first element.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "terrace/tensor.h"

namespace terrace::python {

namespace py = pybind11;

// offset: of the first element, counted from the base's; name: for error texts.
struct Picked {
  Shape shape = {};
  Strides strides = {};  // in elements
  int64_t offset = 0;
  std::string name = {};
};

// Raises IndexError and TypeError, naming the tensor.
Picked pick(py::handle key, const Picked& of);

// The same elements, in the same order, in other dimensions; one of them may be -1. Raises InvalidArgument where that
// cannot be said with strides: a copy would be needed.
Picked reshaped(const py::args& dimensions, const Picked& of);

}  // namespace terrace::python
