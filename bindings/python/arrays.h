// SPDX-License-Identifier: Apache-2.0
// Exports memory without a copy: the buffer protocol, numpy, DLPack, torch. Types that numpy lacks are unsigned
// integers of the same size there (bfloat16: uint16, eight-bit floats: uint8); elements of less
// than a byte are a row of bytes.
//
// Ownership  Every exported object keeps the memory: a numpy array its base object, a buffer and a DLPack
// tensor `keep`.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "terrace/tensor.h"

namespace terrace::python {

namespace py = pybind11;

struct ArrayView {
  void* data = nullptr;
  DType dtype = DType::u8;
  Shape shape = {};
  Strides strides = {};  // in elements
  bool read_only = false;
  uint64_t bytes = 0;  // where elements share bytes
  std::shared_ptr<const void> keep = {};
};

// base: what keeps the memory; a capsule of `keep` where there is none.
py::object numpy_of(const ArrayView& view, py::handle base = {});
// With Python's arguments of __dlpack__. Raises BufferError.
py::object dlpack_of(const ArrayView& view, const py::object& stream, const py::object& max_version,
                     const py::object& dl_device, const py::object& copy);
// Raises BufferError for what is read-only: torch has no such tensors.
py::object torch_of(ArrayView view);

// The buffer protocol's getbuffer. 0, or -1 with BufferError set.
int fill_buffer(const ArrayView& view, PyObject* self, Py_buffer* buffer, int flags) noexcept;
void release_buffer(PyObject* self, Py_buffer* buffer) noexcept;
// Turns the exception that is being handled into Python's; for getbuffer.
int buffer_error() noexcept;

// The buffer protocol for a class that has `ArrayView array() const`, which may throw.
template <typename Exporter>
py::custom_type_setup exports_buffer() {
  return py::custom_type_setup([](PyHeapTypeObject* type) {
    type->ht_type.tp_as_buffer = &type->as_buffer;
    type->as_buffer.bf_getbuffer = [](PyObject* self, Py_buffer* buffer, int flags) -> int {
      try {
        return fill_buffer(py::handle(self).cast<const Exporter&>().array(), self, buffer, flags);
      } catch (...) {
        return buffer_error();
      }
    };
    type->as_buffer.bf_releasebuffer = release_buffer;
  });
}

// __dlpack__() and __dlpack_device__() for such a class.
template <typename Exporter, typename Class>
void add_exchange(Class& exported) {
  exported
      .def(
          "__dlpack__",
          [](const Exporter& self, const py::object& stream, const py::object& max_version,
             const py::object& dl_device,
             const py::object& copy) { return dlpack_of(self.array(), stream, max_version, dl_device, copy); },
          py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
          py::arg("dl_device") = py::none(), py::arg("copy") = py::none(),
          "For from_dlpack() of torch, numpy, jax and others: the same memory. Raises BufferError.")
      .def(
          "__dlpack_device__", [](const Exporter&) { return py::make_tuple(1, 0); }, "Host memory: (1, 0).");
}

// Those and torch().
template <typename Exporter, typename Class>
void add_dlpack(Class& exported) {
  exported.def(
      "torch", [](const Exporter& self) { return torch_of(self.array()); },
      "A torch.Tensor over the same memory.");
  add_exchange<Exporter>(exported);
}

}  // namespace terrace::python
