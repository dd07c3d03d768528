// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/arrays.h"

#include <pybind11/numpy.h>

#include <array>
#include <exception>
#include <string>
#include <vector>

#include "bindings/python/common.h"
#include "bindings/python/dlpack.h"

namespace terrace::python {
namespace {

// As the struct module and numpy name them.
const char* format_of(DType dtype) {
  switch (dtype) {
    case DType::boolean: return "?";
    case DType::i8: return "b";
    case DType::i16: return "h";
    case DType::u16:
    case DType::bf16: return "H";
    case DType::f16: return "e";
    case DType::i32: return "i";
    case DType::u32: return "I";
    case DType::f32: return "f";
    case DType::i64: return "q";
    case DType::u64: return "Q";
    case DType::f64: return "d";
    case DType::c64: return "Zf";
    case DType::f4:
    case DType::f6_e2m3:
    case DType::f6_e3m2:
    case DType::u8:
    case DType::f8_e5m2:
    case DType::f8_e4m3:
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz:
    case DType::f8_e8m0: return "B";
  }
  return "B";
}

const char* numpy_name(DType dtype) {
  switch (dtype) {
    case DType::boolean: return "bool";
    case DType::i8: return "int8";
    case DType::i16: return "int16";
    case DType::u16:
    case DType::bf16: return "uint16";
    case DType::f16: return "float16";
    case DType::i32: return "int32";
    case DType::u32: return "uint32";
    case DType::f32: return "float32";
    case DType::i64: return "int64";
    case DType::u64: return "uint64";
    case DType::f64: return "float64";
    case DType::c64: return "complex64";
    default: return "uint8";
  }
}

// Made once each and never let go: making one costs as much as the rest of an array. numpy is imported before
// pybind11 does it inside a static variable's initializer: an import lets the GIL go, and whoever has it then
// and waits for that variable waits for ever.
const py::dtype& numpy_dtype(DType dtype) {
  static std::array<py::dtype*, 256> made{};
  py::dtype*& place = made[static_cast<uint8_t>(dtype)];
  if (place == nullptr) {
    py::module_::import("numpy");  // and, with it, the module that pybind11 asks for
    place = new py::dtype(numpy_name(dtype));
  }
  return *place;
}

// The view as its elements or, where they share bytes, as a row of bytes.
struct Layout {
  uint32_t rank = 0;
  py::ssize_t element_bytes = 1;
  std::array<py::ssize_t, Shape::rank_max> shape{}, strides{};  // strides in bytes
  py::ssize_t bytes = 0;
};

Layout layout_of(const ArrayView& view) {
  Layout layout;
  const uint32_t element = dtype_element_bytes(view.dtype);
  if (element == 0) {
    layout.rank = 1;
    layout.shape[0] = layout.bytes = static_cast<py::ssize_t>(view.bytes);
    layout.strides[0] = 1;
    return layout;
  }
  layout.rank = view.shape.rank();
  layout.element_bytes = layout.bytes = element;
  for (uint32_t i = 0; i < layout.rank; ++i) {
    layout.shape[i] = static_cast<py::ssize_t>(view.shape[i]);
    // It passes what there is only where it is never taken: in a dimension of one element, or without any.
    if (__builtin_mul_overflow(view.strides[i], element, &layout.strides[i])) layout.strides[i] = element;
    layout.bytes = view.shape[i] == 0 ? 0 : layout.bytes * layout.shape[i];
  }
  return layout;
}

// Whether the elements lie one behind the other, the last (C) or the first (Fortran) dimension fastest.
bool in_a_row(const Layout& layout, bool last_fastest) {
  if (layout.bytes == 0) return true;
  py::ssize_t expected = layout.element_bytes;
  for (uint32_t i = 0; i < layout.rank; ++i) {
    const uint32_t at = last_fastest ? layout.rank - 1 - i : i;
    if (layout.shape[at] > 1 && layout.strides[at] != expected) return false;
    expected *= layout.shape[at];
  }
  return true;
}

bool wants(int flags, int wanted) {
  return (flags & wanted) == wanted;
}

// Why a request cannot be met; nullptr: it can.
const char* refusal(const ArrayView& view, const Layout& layout, int flags) {
  if (wants(flags, PyBUF_WRITABLE) && view.read_only) return "this memory is read-only";
  const bool by_rows = in_a_row(layout, true), by_columns = in_a_row(layout, false);
  const char* const scattered = "the elements do not lie in a row: ask with strides, or copy";
  if (wants(flags, PyBUF_C_CONTIGUOUS) && !by_rows) return scattered;
  if (wants(flags, PyBUF_F_CONTIGUOUS) && !by_columns) return scattered;
  if (wants(flags, PyBUF_ANY_CONTIGUOUS) && !by_rows && !by_columns) return scattered;
  if (!wants(flags, PyBUF_STRIDES) && !by_rows) return scattered;
  return nullptr;
}

// What a Py_buffer points to.
struct Exported {
  Layout layout;
  std::shared_ptr<const void> keep;
};

dlpack::Memory dlpack_memory(const ArrayView& view) {
  for (uint32_t i = 0; i < view.shape.rank(); ++i)
    if (view.strides[i] < 0)
      raise_buffer_error(
          "a view that runs backwards: torch and others have no negative strides; flip it there");
  return {.data = view.data,
          .dtype = view.dtype,
          .shape = view.shape,
          .strides = view.strides,
          .keep = view.keep,
          .read_only = view.read_only};
}

template <typename Managed>
py::object capsule_of(Result<Managed*> managed, const char* name) {
  if (!managed.ok()) raise_buffer_error(managed.error().to_string());
  // A consumer that takes the tensor renames the capsule; who never does leaves it to us.
  PyObject* const capsule = PyCapsule_New(*managed, name, [](PyObject* self) {
    const char* const now = PyCapsule_GetName(self);
    if (now == nullptr || std::string_view(now).starts_with("used_")) return;
    auto* const left = static_cast<Managed*>(PyCapsule_GetPointer(self, now));
    if (left != nullptr) left->deleter(left);
  });
  if (capsule == nullptr) {
    (*managed)->deleter(*managed);
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(capsule);
}

}  // namespace

void raise_buffer_error(const std::string& text) {
  PyErr_SetString(PyExc_BufferError, text.c_str());
  throw py::error_already_set();
}

py::object dlpack_capsule(const dlpack::Memory& memory, bool versioned) {
  if (versioned) return capsule_of(dlpack::make_versioned(memory), dlpack::versioned_capsule_name);
  return capsule_of(dlpack::make(memory), dlpack::capsule_name);
}

py::object numpy_of(const ArrayView& view, py::handle base) {
  const Layout layout = layout_of(view);
  py::object keeper = py::reinterpret_borrow<py::object>(base);
  if (!keeper)
    keeper = py::capsule(new std::shared_ptr<const void>(view.keep),
                         [](void* kept) { delete static_cast<std::shared_ptr<const void>*>(kept); });
  py::array array(numpy_dtype(view.dtype),
                  std::vector<py::ssize_t>(layout.shape.begin(), layout.shape.begin() + layout.rank),
                  std::vector<py::ssize_t>(layout.strides.begin(), layout.strides.begin() + layout.rank),
                  view.data, keeper);
  if (view.read_only) py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return array;
}

py::object dlpack_of(const ArrayView& view, const py::object& stream, const py::object& max_version,
                     const py::object& dl_device, const py::object& copy) {
  if (!stream.is_none()) raise_buffer_error("this is host memory: it has no streams");
  if (!copy.is_none() && py::bool_(copy))
    raise_buffer_error("no copy is made here: copy what numpy() or torch() gives");
  if (!dl_device.is_none() && !dl_device.equal(py::make_tuple(1, 0)))
    raise_buffer_error("this is host memory (device 1, 0); it is not copied to another device here");
  const bool versioned = !max_version.is_none() && max_version[py::int_(0)].cast<int>() >= 1;
  return dlpack_capsule(dlpack_memory(view), versioned);
}

py::object torch_of(ArrayView view) {
  if (view.read_only)
    raise_buffer_error("this memory is read-only, and torch has no read-only tensors: copy it");
  const py::module_ torch = py::module_::import("torch");
  const uint32_t element = dtype_element_bytes(view.dtype);
  // DLPack of torch's age has no names for floats of eight bits: they go as bytes and are called by their name
  // there, where torch has one.
  py::object called;
  if (element == 0) {
    view.shape = Shape{view.bytes};
    view.strides = row_major_strides(view.shape);
  }
  if (dtype_bits(view.dtype) <= 8 && view.dtype != DType::i8 && view.dtype != DType::boolean) {
    const char* const name = view.dtype == DType::f8_e4m3       ? "float8_e4m3fn"
                             : view.dtype == DType::f8_e5m2     ? "float8_e5m2"
                             : view.dtype == DType::f8_e8m0     ? "float8_e8m0fnu"
                             : view.dtype == DType::f8_e4m3fnuz ? "float8_e4m3fnuz"
                             : view.dtype == DType::f8_e5m2fnuz ? "float8_e5m2fnuz"
                                                                : "";
    called = py::getattr(torch, name, py::none());
    view.dtype = DType::u8;
  }
  if ((view.dtype == DType::u16 || view.dtype == DType::u32 || view.dtype == DType::u64) &&
      !py::hasattr(torch, "uint16"))
    raise_buffer_error("this torch has no " + std::string(dtype_name(view.dtype)) +
                       " (2.3 and later have): take numpy(), or view it as signed integers");
  const py::object capsule = dlpack_capsule(dlpack_memory(view), false);
  py::object tensor = py::module_::import("torch.utils.dlpack").attr("from_dlpack")(capsule);
  return called && !called.is_none() ? tensor.attr("view")(called) : tensor;
}

int fill_buffer(const ArrayView& view, PyObject* self, Py_buffer* buffer, int flags) noexcept {
  static char nothing = 0;
  buffer->obj = nullptr;
  auto exported = std::unique_ptr<Exported>(new (std::nothrow) Exported{layout_of(view), view.keep});
  if (exported == nullptr) {
    PyErr_NoMemory();
    return -1;
  }
  Layout& layout = exported->layout;
  if (const char* const why = refusal(view, layout, flags)) {
    PyErr_SetString(PyExc_BufferError, why);
    return -1;
  }
  buffer->buf = view.data == nullptr ? &nothing : view.data;
  buffer->len = layout.bytes;
  buffer->readonly = view.read_only ? 1 : 0;
  buffer->itemsize = layout.element_bytes;
  buffer->format = wants(flags, PyBUF_FORMAT) ? const_cast<char*>(format_of(view.dtype)) : nullptr;  // NOLINT
  buffer->ndim = static_cast<int>(layout.rank);
  buffer->shape = wants(flags, PyBUF_ND) ? layout.shape.data() : nullptr;
  buffer->strides = wants(flags, PyBUF_STRIDES) ? layout.strides.data() : nullptr;
  buffer->suboffsets = nullptr;
  buffer->internal = exported.release();
  Py_INCREF(self);
  buffer->obj = self;
  return 0;
}

void release_buffer(PyObject*, Py_buffer* buffer) noexcept {
  delete static_cast<Exported*>(buffer->internal);
}

int buffer_error() noexcept {
  try {
    throw;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_BufferError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_BufferError, "unknown");
  }
  return -1;
}

}  // namespace terrace::python
