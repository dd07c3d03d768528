// SPDX-License-Identifier: Apache-2.0
// DLPack's Python capsules, of memory on the host or on a device.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "terrace/dlpack.h"

namespace terrace::python {

namespace py = pybind11;

// versioned: of DLPack 1.0, else of before. Raises BufferError for what it cannot say.
py::object dlpack_capsule(const dlpack::Memory& memory, bool versioned);
[[noreturn]] void raise_buffer_error(const std::string& text);

}  // namespace terrace::python
