// SPDX-License-Identifier: Apache-2.0
// Model and ModelTensor: tensors of a lease's catalog or of files, in place; files of tensors.
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/python/elements.h"
#include "bindings/python/handles.h"
#include "bindings/python/index.h"
#include "bindings/python/transfers.h"
#include "bindings/python/values.h"
#include "terrace/safetensors.h"

namespace terrace::python {
namespace {

ModelObject open_model(const py::object& source) {
  if (py::isinstance<LeaseObject>(source)) {
    const auto& lease = source.cast<const LeaseObject&>();
    auto model = take(without_gil([&] { return Model::open(lease.lease); }));
    return {ends_without_gil<const Model>(std::move(model)), lease.origin};
  }
  const std::string path = path_of(source);
  return {ends_without_gil<const Model>(take(without_gil([&] { return Model::open_files(path); }))), nullptr};
}

ModelTensorObject tensor_object(const ModelObject& self, const TensorView& view) {
  return {
      .model = self.open(), .origin = self.origin, .base = view, .shape = view.shape, .strides = view.strides};
}

ModelTensorObject get(const ModelObject& self, const std::string& name) {
  return tensor_object(self, take(self.open()->find(name)));
}

py::list names(const ModelObject& self) {
  py::list list;
  for (const TensorView& view : self.open()->tensors())
    list.append(py::str(view.name.data(), view.name.size()));
  return list;
}

py::dict metadata(const ModelObject& self) {
  py::dict dict;
  for (const auto& [key, value] : self.open()->metadata()) dict[py::str(key)] = py::str(value);
  return dict;
}

uint64_t all_bytes(const ModelObject& self) {
  uint64_t sum = 0;
  for (const TensorView& view : self.open()->tensors()) sum += view.bytes.size();
  return sum;
}

// Where another process finds it: arguments of terrace._models.reopen.
py::tuple place_of(const Model& model, const std::shared_ptr<const Origin>& origin) {
  const auto& lease = model.lease();
  if (lease == nullptr || origin == nullptr) return py::make_tuple("files", model.source());
  return py::make_tuple("lease", lease->id().value, lease->epoch().value, origin->socket, origin->tenant,
                        origin->host);
}

py::tuple reduce_model(const ModelObject& self) {
  return py::make_tuple(py::module_::import("terrace._models").attr("reopen"),
                        place_of(*self.open(), self.origin));
}

py::tuple reduce_tensor(const ModelTensorObject& self) {
  return py::make_tuple(
      py::module_::import("terrace._models").attr("reopen_tensor"),
      py::make_tuple(place_of(*self.model, self.origin), py::str(self.base.name.data(), self.base.name.size()),
                     tuple_of(self.shape), tuple_of(self.strides, self.shape.rank()), self.offset));
}

uint64_t bytes_of(const ModelTensorObject& self) {
  return take(tensor_bytes(self.base.dtype, self.shape));
}

ModelTensorObject view_of(const ModelTensorObject& self, const Picked& picked) {
  ModelTensorObject view = self;
  view.shape = picked.shape;
  view.strides = picked.strides;
  view.offset = picked.offset;
  return view;
}

Picked all_of(const ModelTensorObject& self) {
  if (dtype_element_bytes(self.base.dtype) == 0)
    raise_invalid("tensor " + quoted_name(self.base.name) + ": elements of " +
                  std::string(dtype_name(self.base.dtype)) + " share bytes; index the bytes of numpy()");
  return {
      .shape = self.shape, .strides = self.strides, .offset = self.offset, .name = std::string(self.base.name)};
}

ModelTensorObject get_item(const ModelTensorObject& self, const py::object& key) {
  return view_of(self, pick(key, all_of(self)));
}

// Of another process's view, which is not believed: every element must lie in the tensor.
ModelTensorObject at(const ModelTensorObject& self, const py::object& shape, const py::object& strides,
                     int64_t offset) {
  ModelTensorObject view = self;
  view.shape = shape_of(shape);
  view.strides = strides_of(strides, view.shape.rank());
  view.offset = offset;
  if (!view.shape.elements()) raise_invalid("a shape beyond 2^64 elements");
  if (view.shape.elements() == uint64_t{0}) view.offset = 0;  // nothing is read there
  if (dtype_element_bytes(self.base.dtype) == 0 && view.shape == self.base.shape && offset == 0) return self;
  const auto elements =
      static_cast<int64_t>(self.base.bytes.size() / std::max(1U, dtype_element_bytes(self.base.dtype)));
  int64_t first = offset, last = offset;
  bool beyond = false;
  for (uint32_t i = 0; i < view.shape.rank(); ++i) {
    if (view.shape[i] == 0) return view;
    int64_t way = 0;
    int64_t& end = view.strides[i] < 0 ? first : last;
    beyond = beyond || __builtin_mul_overflow(view.shape[i] - 1, view.strides[i], &way) ||
             __builtin_add_overflow(end, way, &end);
  }
  if (beyond || first < 0 || last >= elements)
    raise_invalid("tensor " + quoted_name(self.base.name) + ": a view that reaches outside of it");
  return view;
}

py::object save(const py::object& path,
                const std::vector<std::tuple<std::string, std::string, py::object, py::object>>& tensors,
                const py::object& metadata, bool replace) {
  std::vector<Py_buffer> buffers(tensors.size());
  const auto let_go = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) PyBuffer_Release(&buffers[i]);
  };
  std::vector<TensorView> views;
  size_t taken = 0;
  try {
    for (const auto& [name, dtype, shape, bytes] : tensors) {
      if (PyObject_GetBuffer(bytes.ptr(), &buffers[taken], PyBUF_C_CONTIGUOUS) != 0)
        throw py::error_already_set();
      const Py_buffer& buffer = buffers[taken++];
      const Shape dimensions = shape_of(shape);
      if (!dimensions.elements())
        raise_invalid("tensor " + quoted_name(name) + ": a shape beyond 2^64 elements");
      views.push_back({.name = name,
                       .dtype = dtype_of(py::str(dtype)),
                       .shape = dimensions,
                       .strides = row_major_strides(dimensions),
                       .bytes = {static_cast<const std::byte*>(buffer.buf), static_cast<size_t>(buffer.len)}});
    }
    const std::string file = path_of(path);
    const TensorMetadata texts = metadata_of(metadata);
    ExportOptions options;
    options.replace = replace;
    interruptibly(options, [&](const auto& with) { return write_safetensors(views, texts, file, with); });
  } catch (...) {
    let_go(taken);
    throw;
  }
  let_go(taken);
  return py::none();
}

uint64_t import_size(const py::object& path) {
  const std::string file = path_of(path);
  return take(without_gil([&] { return required_bytes(file); }));
}

py::dict import_into(const LeaseObject& self, const py::object& path, const py::object& hint, bool verify,
                     const py::object& progress, const py::object& cancelled) {
  const std::string file = path_of(path);
  const auto mapping = take(without_gil([&] { return Mapping::map(self.lease); }));
  ImportOptions options;
  options.hint = hint_of(hint);
  options.verify = verify;
  options.lease_epoch = self.lease->epoch();
  options.persist = [&](std::span<const std::byte> range) { mapping->persist(range); };
  const TransferReport report = interruptibly(
      options, [&](const auto& with) { return import_safetensors(file, mapping->bytes(), with); }, progress,
      cancelled);
  return py::dict(py::arg("tensors") = report.tensors, py::arg("tensor_bytes") = report.tensor_bytes,
                  py::arg("note") = report.note);
}

void add_model(py::module_& module) {
  py::class_<ModelObject>(
      module, "Model",
      "The tensors of a model, in place: of a lease (terrace.open_model), or of files. A mapping "
      "from names to ModelTensor. Any number of processes look at the same bytes.")
      .def(py::init(&open_model), py::arg("source"),
           "source: a Lease with a catalog in it, or the path of a safetensors file, of an index of shards "
           "(model.safetensors.index.json), or of a folder with one of them.")
      .def("keys", &names, "The names of all tensors, in the order of their bytes.")
      .def("__getitem__", &get, py::arg("name"), "The tensor of that name. Raises terrace.NotFound.")
      .def(
          "__contains__",
          [](const ModelObject& self, const py::object& name) {
            return py::isinstance<py::str>(name) && self.open()->find(name.cast<std::string>()).ok();
          },
          py::arg("name"), "Whether there is a tensor of that name.")
      .def(
          "__len__", [](const ModelObject& self) { return self.open()->tensors().size(); }, "How many tensors.")
      .def(
          "__iter__", [](const ModelObject& self) { return py::iter(names(self)); },
          "The names of all tensors.")
      .def(
          "values",
          [](const ModelObject& self) {
            py::list list;
            for (const TensorView& view : self.open()->tensors())
              list.append(py::cast(tensor_object(self, view)));
            return list;
          },
          "All tensors, in the order of their bytes.")
      .def(
          "items",
          [](const ModelObject& self) {
            py::list list;
            for (const TensorView& view : self.open()->tensors())
              list.append(py::make_tuple(py::str(view.name.data(), view.name.size()),
                                         py::cast(tensor_object(self, view))));
            return list;
          },
          "Names and tensors, in the order of their bytes.")
      .def_property_readonly("metadata", &metadata, "What the file's __metadata__ said.")
      .def_property_readonly("nbytes", &all_bytes, "Of all tensors together.")
      .def_property_readonly(
          "source", [](const ModelObject& self) { return self.open()->source(); }, "The path, or 'lease 7'.")
      .def_property_readonly(
          "takes_stores", [](const ModelObject& self) { return self.open()->takes_stores(); },
          "Whether this process may store to the tensors: touched pages become its own copies, nobody else "
          "sees them. "
          "False on DAX devices, where a store ends the process.")
      .def(
          "verify",
          [](const ModelObject& self) {
            const auto model = self.open();
            take(without_gil([&] { return model->verify(); }));
          },
          "Compares all tensors of a lease with the checksums that the import recorded. Raises "
          "terrace.Corrupt, which "
          "names the tensor; terrace.Unsupported for files, which have none.")
      .def(
          "close", [](ModelObject& self) { self.model.reset(); },
          "No more calls; its memory and lease go once its tensors and their arrays are gone.")
      .def("__repr__",
           [](const ModelObject& self) {
             if (self.model == nullptr) return std::string("<terrace.Model, closed>");
             return "<terrace.Model " + quoted_name(self.model->source()) + " " +
                    std::to_string(self.model->tensors().size()) + " tensors>";
           })
      .def("__reduce__", &reduce_model, "By reference: who unpickles it opens the same lease or files.")
      .def(
          "__enter__", [](py::object self) { return self; }, "The model itself.")
      .def(
          "__exit__", [](ModelObject& self, const py::args&) { self.model.reset(); }, "As close().");
}

void add_model_tensor(py::module_& module) {
  auto tensor =
      py::class_<ModelTensorObject>(
          module, "ModelTensor",
          "A tensor of a Model, or a view of one, in place. numpy, torch and whatever takes "
          "buffers or DLPack see its bytes without a copy.",
          exports_buffer<ModelTensorObject>())
          .def_property_readonly(
              "name",
              [](const ModelTensorObject& self) {
                return py::str(self.base.name.data(), self.base.name.size());
              },
              "Its name in the model.")
          .def_property_readonly(
              "dtype", [](const ModelTensorObject& self) { return std::string(dtype_name(self.base.dtype)); },
              "As safetensors names it: 'F32', 'BF16', 'F8_E4M3'.")
          .def_property_readonly(
              "shape", [](const ModelTensorObject& self) { return tuple_of(self.shape); },
              "Elements a dimension.")
          .def_property_readonly(
              "strides",
              [](const ModelTensorObject& self) { return tuple_of(self.strides, self.shape.rank()); },
              "In elements.")
          .def_property_readonly(
              "ndim", [](const ModelTensorObject& self) { return self.shape.rank(); }, "How many dimensions.")
          .def_property_readonly(
              "size", [](const ModelTensorObject& self) { return self.shape.elements().value_or(0); },
              "How many elements.")
          .def_property_readonly("nbytes", &bytes_of, "Bytes of its elements.")
          .def_property_readonly(
              "hint", [](const ModelTensorObject& self) { return std::string(hint_name(self.base.hint)); },
              "What the import said that it is for: 'weights', 'none', ...")
          .def_property_readonly(
              "offset", [](const ModelTensorObject& self) { return self.offset; },
              "Of a view: its first element, counted from the tensor's.")
          .def_property_readonly(
              "block_type",
              [](const ModelTensorObject& self) -> py::object {
                const std::string key = "gguf.type." + std::string(self.base.name);
                for (const auto& [name, value] : self.model->metadata())
                  if (name == key) return py::str(value);
                return py::none();
              },
              "Of quantised tensors of GGUF files: the type of their blocks, 'Q4_K'. Each row is the blocks' "
              "bytes (U8).")
          .def(
              "__len__",
              [](const ModelTensorObject& self) {
                if (self.shape.rank() == 0) throw py::type_error("a scalar has no length");
                return self.shape[0];
              },
              "Elements of the first dimension.")
          .def("__getitem__", &get_item, py::arg("key"),
               "A view: by integers, slices, ... and None, as numpy's.")
          .def(
              "reshape",
              [](const ModelTensorObject& self, const py::args& shape) {
                return view_of(self, reshaped(shape, all_of(self)));
              },
              "The same elements in other dimensions, without a copy; one may be -1. Raises InvalidArgument "
              "where that "
              "needs one.")
          .def("_at", &at, py::arg("shape"), py::arg("strides"), py::arg("offset"))
          .def(
              "numpy", [](const ModelTensorObject& self) { return numpy_of(self.array()); },
              "A numpy array over the same memory, which it keeps. BF16 is uint16 there, floats of eight bits "
              "uint8.")
          .def(
              "torch",
              [](const ModelTensorObject& self, bool unmarked) {
                ArrayView view = self.array();
                if (unmarked) view.read_only = false;
                return torch_of(view);
              },
              py::kw_only(), py::arg("unmarked") = false,
              "A torch.Tensor over the same memory, which it keeps. unmarked=True gives one also where a store "
              "to it "
              "would end the process (Model.takes_stores is False).")
          .def("__repr__",
               [](const ModelTensorObject& self) {
                 return "<terrace.ModelTensor " + quoted_name(self.base.name) + " " +
                        std::string(dtype_name(self.base.dtype)) + " " + self.shape.to_string() + ">";
               })
          .def("__reduce__", &reduce_tensor, "By reference: who unpickles it opens the same lease or files.");
  add_exchange<ModelTensorObject>(tensor);
  add_elements(tensor);
}

}  // namespace

std::shared_ptr<const Model> ModelObject::open() const {
  if (model == nullptr) raise_closed("model");
  return model;
}

ArrayView ModelTensorObject::array() const {
  const uint32_t element = dtype_element_bytes(base.dtype);
  return {.data = const_cast<std::byte*>(base.bytes.data()) +
                  offset *
                      static_cast<int64_t>(element),  // NOLINT: takes_stores() says whether it may be stored to
          .dtype = base.dtype,
          .shape = shape,
          .strides = strides,
          .read_only = !model->takes_stores(),
          .bytes = base.bytes.size(),
          .keep = model};
}

void add_models(py::module_& module) {
  add_model_tensor(module);
  add_model(module);
  module.def("import_size", &import_size, py::arg("path"), "Bytes of the lease that import_into() needs.");
  module.def("import_into", &import_into, py::arg("lease"), py::arg("path"), py::kw_only(),
             py::arg("hint") = "weights", py::arg("verify") = false, py::arg("progress") = py::none(),
             py::arg("cancelled") = py::none(),
             "Reads a model's files into a lease; terrace.import_model() grants one for that.");
  module.def("save_safetensors", &save, py::arg("path"), py::arg("tensors"), py::arg("metadata"),
             py::arg("replace") = true,
             "Writes (name, dtype, shape, buffer) of each tensor to a safetensors file, which appears whole or "
             "not at all.");
}

}  // namespace terrace::python
