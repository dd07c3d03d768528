// SPDX-License-Identifier: Apache-2.0
// terrace._terrace: libterrace's C++ interface for Python. The package around it is in bindings/python/terrace.
#include <unistd.h>

#include "bindings/python/common.h"
#include "bindings/python/devices.h"
#include "terrace/version.h"

namespace terrace::python {

void stay_until_exit() noexcept {
  while (true) pause();
}

py::object exception_of(const Error& error) {
  const py::object make = py::module_::import("terrace._errors").attr("of");
  return make(static_cast<int>(error.code), error.to_string(), error.os_errno,
              error.where == nullptr ? "" : error.where);
}

void raise(const Error& error) {
  const py::object exception = exception_of(error);
  PyErr_SetObject(py::type::of(exception).ptr(), exception.ptr());
  throw py::error_already_set();
}

}  // namespace terrace::python

PYBIND11_MODULE(_terrace, module) {
  module.doc() = "Terrace: tensors across DDR and CXL memory";
  module.attr("__version__") = terrace::library_version();
  terrace::python::add_sessions(module);
  terrace::python::add_devices(module);
  terrace::python::add_models(module);
  terrace::python::add_tensors(module);
  terrace::python::add_pools(module);
  terrace::python::add_checkpoints(module);
  terrace::python::add_shared(module);
  terrace::python::add_spaces(module);
  terrace::python::add_kv(module);
}
