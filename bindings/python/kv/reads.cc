// SPDX-License-Identifier: Apache-2.0
// KvSpace: finding blocks, reading them by copy and in place.
#include <algorithm>
#include <deque>
#include <utility>

#include "bindings/python/kv/kv.h"
#include "bindings/python/memory.h"
#include "bindings/python/values.h"

namespace terrace::python {
namespace {

py::list exists(const KvSpaceObject& self, const py::object& keys, const py::object& name_space) {
  const auto space = self.open();
  const KvKeys asked(keys);
  const KvNamespace names = kv_namespace(self, name_space);
  const auto found = std::make_unique<bool[]>(asked.views.size());
  take(without_gil([&] { return space->exists(names, asked.views, {found.get(), asked.views.size()}); }));
  py::list answers(asked.views.size());
  for (size_t i = 0; i < asked.views.size(); ++i) answers[i] = py::bool_(found[i]);
  return answers;
}

bool contains(const KvSpaceObject& self, const py::object& key) {
  return exists(self, py::make_tuple(key), py::none())[0].cast<bool>();
}

uint64_t prefix(const KvSpaceObject& self, const py::object& keys, const py::object& name_space) {
  const auto space = self.open();
  const KvKeys asked(keys);
  const KvNamespace names = kv_namespace(self, name_space);
  return take(without_gil([&] { return space->prefix(names, asked.views); }));
}

// A bytes object that nobody has yet.
py::bytes new_bytes(uint64_t size) {
  PyObject* const made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::bytes>(made);
}

std::span<std::byte> room_of(const py::bytes& bytes) {
  return {reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes.ptr())),
          static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
}

// The first `size` bytes of what new_bytes() made.
py::bytes cut(py::bytes bytes, uint64_t size) {
  if (static_cast<uint64_t>(PyBytes_GET_SIZE(bytes.ptr())) == size) return bytes;
  PyObject* owned = bytes.release().ptr();
  if (_PyBytes_Resize(&owned, static_cast<Py_ssize_t>(size)) != 0) throw py::error_already_set();
  return py::reinterpret_steal<py::bytes>(owned);
}

py::object get_one(const KvSpaceObject& self, const KvNamespace& names, std::string_view key) {
  const auto space = self.open();
  uint64_t room_bytes = self.usual_bytes->load(std::memory_order_relaxed);
  for (uint32_t tries_left = 8;; --tries_left) {
    py::bytes made = new_bytes(room_bytes);
    const KvGet one{.key = key, .into = room_of(made)};
    const Result<uint64_t> got = without_gil([&] { return space->get(names, one); });
    if (got.ok()) {
      self.usual_bytes->store(*got, std::memory_order_relaxed);
      return cut(std::move(made), *got);
    }
    if (kv_is_missing(got.error())) return py::none();
    if (got.error().code != ErrorCode::invalid_argument || tries_left == 0) raise(got.error());
    // The room was too small. Blocks are put anew with other lengths meanwhile, but not for ever.
    Result<uint64_t> length = without_gil([&] { return space->length(names, key); });
    if (!length.ok() && kv_is_missing(length.error())) return py::none();
    room_bytes = take(std::move(length));
  }
}

py::object get(const KvSpaceObject& self, const py::object& key, const py::object& name_space) {
  return get_one(self, kv_namespace(self, name_space), kv_key(key));
}

py::object get_into(const KvSpaceObject& self, const py::object& key, const py::object& buffer,
                    const py::object& name_space) {
  const auto space = self.open();
  const KvNamespace names = kv_namespace(self, name_space);
  const Bytes into(buffer, true);
  const KvGet one{.key = kv_key(key), .into = into.get()};
  Result<uint64_t> got = without_gil([&] { return space->get(names, one); });
  if (!got.ok() && kv_is_missing(got.error())) return py::none();
  return py::int_(take(std::move(got)));
}

// Room for each block that is there; none for the others, which are asked for all the same: they count as missed.
std::vector<py::bytes> rooms_for(const std::shared_ptr<KvSpace>& space, const KvNamespace& names,
                                 const std::vector<std::string_view>& keys) {
  std::vector<Result<uint64_t>> lengths;
  without_gil([&] {
    for (const std::string_view key : keys) lengths.push_back(space->length(names, key));
  });
  std::vector<py::bytes> rooms;
  for (Result<uint64_t>& length : lengths) {
    if (!length.ok() && !kv_is_missing(length.error())) raise(length.error());
    rooms.push_back(new_bytes(length.ok() ? *length : 0));
  }
  return rooms;
}

py::list get_many(const KvSpaceObject& self, const py::object& keys, const py::object& name_space) {
  const auto space = self.open();
  const KvKeys asked(keys);
  const KvNamespace names = kv_namespace(self, name_space);
  std::vector<py::bytes> rooms = rooms_for(space, names, asked.views);
  std::vector<KvGet> gets;
  for (size_t i = 0; i < rooms.size(); ++i) gets.push_back({.key = asked.views[i], .into = room_of(rooms[i])});
  const std::vector<Result<uint64_t>> got = without_gil([&] { return space->get_many(names, gets); });
  py::list blocks(rooms.size());
  for (size_t i = 0; i < rooms.size(); ++i) {
    if (got[i].ok())
      blocks[i] = cut(std::move(rooms[i]), *got[i]);
    else if (kv_is_missing(got[i].error()))
      blocks[i] = py::none();
    else if (got[i].error().code == ErrorCode::invalid_argument)  // put since its length was asked
      blocks[i] = get_one(self, names, asked.views[i]);
    else
      raise(got[i].error());
  }
  return blocks;
}

py::list get_many_into(const KvSpaceObject& self, const py::object& blocks, bool raises,
                       const py::object& name_space) {
  const auto space = self.open();
  const KvNamespace names = kv_namespace(self, name_space);
  const py::tuple items(py::isinstance<py::dict>(blocks) ? py::object(blocks.attr("items")()) : blocks);
  std::vector<py::tuple> pairs;  // keep keys and buffers
  std::deque<Bytes> rooms;
  std::vector<KvGet> gets;
  for (const py::handle item : items) {
    pairs.emplace_back(py::reinterpret_borrow<py::object>(item));
    if (pairs.back().size() != 2) raise_invalid("blocks are pairs of a key and a buffer");
    rooms.emplace_back(py::object(pairs.back()[1]), true);
    gets.push_back({.key = kv_key(pairs.back()[0]), .into = rooms.back().get()});
  }
  const std::vector<Result<uint64_t>> got = without_gil([&] { return space->get_many(names, gets); });
  py::list lengths(got.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i].ok())
      lengths[i] = py::int_(*got[i]);
    else if (kv_is_missing(got[i].error()))
      lengths[i] = py::none();
    else if (raises)
      raise(got[i].error());
    else
      lengths[i] = exception_of(got[i].error());
  }
  return lengths;
}

KvViewObject view(const KvSpaceObject& self, const py::object& key, const py::object& name_space) {
  const auto space = self.open();
  const KvNamespace names = kv_namespace(self, name_space);
  const std::string_view wanted = kv_key(key);
  auto held = std::make_shared<KvViewObject::Held>();
  held->space = space;
  held->view = take(without_gil([&] { return space->view(names, wanted); }));
  return {std::move(held)};
}

}  // namespace

ArrayView kv_shaped(ArrayView bytes, const py::object& dtype, const py::object& shape) {
  const DType wanted = dtype_of(dtype);
  const uint32_t element = std::max(dtype_element_bytes(wanted), 1u);  // what shares bytes is a row of them
  bytes.dtype = dtype_element_bytes(wanted) == 0 ? DType::u8 : wanted;
  bytes.shape = shape.is_none() ? Shape{bytes.bytes / element} : shape_of(shape);
  const auto elements = bytes.shape.elements();
  if (!elements || *elements > bytes.bytes || *elements * element != bytes.bytes)
    raise_invalid("the block's " + std::to_string(bytes.bytes) + " bytes are not " + bytes.shape.to_string() +
                  " of " + std::string(dtype_name(wanted)));
  bytes.strides = row_major_strides(bytes.shape);
  return bytes;
}

ArrayView kv_bytes(std::span<const std::byte> bytes, bool read_only, std::shared_ptr<const void> keep) {
  return {.data = const_cast<std::byte*>(bytes.data()),  // NOLINT: read_only says whether it may be stored to
          .dtype = DType::u8,
          .shape = Shape{bytes.size()},
          .strides = row_major_strides(Shape{bytes.size()}),
          .read_only = read_only,
          .bytes = bytes.size(),
          .keep = std::move(keep)};
}

ArrayView KvViewObject::array() const {
  if (held == nullptr) raise_closed("view");
  return kv_bytes(held->view.bytes(), true, held);
}

void add_kv_view(py::module_& module) {
  auto views =
      py::class_<KvViewObject>(module, "KvView",
                               "A block of a KV space in place, read-only; it stays while somebody has it.",
                               exports_buffer<KvViewObject>())
          .def_property_readonly(
              "nbytes", [](const KvViewObject& self) { return self.array().bytes; }, "Bytes of the block.")
          .def(
              "__len__", [](const KvViewObject& self) { return self.array().bytes; }, "As nbytes.")
          .def(
              "numpy",
              [](const KvViewObject& self, const py::object& dtype, const py::object& shape) {
                return numpy_of(kv_shaped(self.array(), dtype, shape));
              },
              py::arg("dtype") = "uint8", py::arg("shape") = py::none(),
              "A read-only array over the block's own bytes; shape: a row, unless it says more.")
          .def(
              "close", [](KvViewObject& self) { self.held.reset(); },
              "Lets it go once its arrays and buffers are gone.")
          .def(
              "__enter__", [](py::object self) { return self; }, "The view itself.")
          .def(
              "__exit__", [](KvViewObject& self, const py::args&) { self.held.reset(); }, "As close().");
  add_exchange<KvViewObject>(views);
}

void add_kv_reads(KvSpaceClass& spaces) {
  spaces
      .def("exists", &exists, py::arg("keys"), py::kw_only(), py::arg("namespace") = py::none(),
           "Whether each of the keys is there.")
      .def("__contains__", &contains, py::arg("key"), "Whether the key is there.")
      .def("prefix", &prefix, py::arg("keys"), py::kw_only(), py::arg("namespace") = py::none(),
           "How many of the first keys are there without a gap: a prompt's cached prefix.")
      .def("get", &get, py::arg("key"), py::kw_only(), py::arg("namespace") = py::none(),
           "A copy of the block; None: it is not there.")
      .def("get_into", &get_into, py::arg("key"), py::arg("buffer"), py::kw_only(),
           py::arg("namespace") = py::none(),
           "Copies the block to the begin of a buffer, and gives its length; None: it is not there.")
      .def("get_many", &get_many, py::arg("keys"), py::kw_only(), py::arg("namespace") = py::none(),
           "As get() of each, at once.")
      .def(
          "get_many_into", &get_many_into, py::arg("blocks"), py::kw_only(), py::arg("raises") = true,
          py::arg("namespace") = py::none(),
          "As get_into() of each, at once, of a dict or of pairs of key and buffer. Raises what the first that "
          "failed would have, once all were tried; raises=False: gives the exception in the place of its "
          "answer.")
      .def("view", &view, py::arg("key"), py::kw_only(), py::arg("namespace") = py::none(),
           "The block in place, which stays as it is until the view and all over it are let go. "
           "Raises NotFound, LimitExceeded.");
}

}  // namespace terrace::python
