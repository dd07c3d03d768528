// SPDX-License-Identifier: Apache-2.0
// KvSpace: putting blocks, by copy and by filling them in place.
#include <deque>
#include <utility>

#include "bindings/python/kv/kv.h"
#include "bindings/python/memory.h"
#include "bindings/python/values.h"

namespace terrace::python {
namespace {

KvPutOptions kv_put_options(const py::object& parent, uint64_t ttl_s, const py::object& wait,
                            const py::object& checksum) {
  KvPutOptions options{.ttl_s = ttl_s, .wait_ns = nanoseconds(wait)};
  if (!parent.is_none()) options.parent = kv_key(parent);
  if (!checksum.is_none()) options.checksum = static_cast<bool>(py::bool_(checksum));
  return options;
}

// false: it is there already.
bool was_put(const Status& status) {
  if (!status.ok() && status.error().code == ErrorCode::already_exists) return false;
  take(status);
  return true;
}

bool put(const KvSpaceObject& self, const py::object& key, const py::object& data, const py::object& parent,
         uint64_t ttl_s, const py::object& wait, const py::object& checksum, const py::object& name_space) {
  const auto space = self.open();
  const KvNamespace names = kv_namespace(self, name_space);
  const Bytes bytes(data, false);
  const KvPut one{
      .key = kv_key(key), .bytes = bytes.get(), .options = kv_put_options(parent, ttl_s, wait, checksum)};
  return was_put(without_gil([&] { return space->put(names, one); }));
}

py::list put_many(const KvSpaceObject& self, const py::object& blocks, const py::object& parent, bool chain,
                  uint64_t ttl_s, const py::object& wait, const py::object& checksum, bool raises,
                  const py::object& name_space) {
  const auto space = self.open();
  const KvNamespace names = kv_namespace(self, name_space);
  const py::tuple items(py::isinstance<py::dict>(blocks) ? py::object(blocks.attr("items")()) : blocks);
  std::vector<py::tuple> pairs;  // keep keys and buffers
  std::deque<Bytes> bytes;
  std::vector<KvPut> puts;
  KvPutOptions options = kv_put_options(parent, ttl_s, wait, checksum);
  for (const py::handle item : items) {
    pairs.emplace_back(py::reinterpret_borrow<py::object>(item));
    if (pairs.back().size() != 2) raise_invalid("blocks are pairs of a key and a buffer");
    bytes.emplace_back(py::object(pairs.back()[1]), false);
    puts.push_back({.key = kv_key(pairs.back()[0]), .bytes = bytes.back().get(), .options = options});
    if (chain) options.parent = puts.back().key;
  }
  const std::vector<Status> done = without_gil([&] { return space->put_many(names, puts); });
  py::list answers;
  for (const Status& status : done) {
    const bool failed = !status.ok() && status.error().code != ErrorCode::already_exists;
    if (failed && !raises)
      answers.append(exception_of(status.error()));
    else
      answers.append(py::bool_(was_put(status)));
  }
  return answers;
}

KvWriteObject reserve(const KvSpaceObject& self, const py::object& key, uint64_t nbytes,
                      const py::object& parent, uint64_t ttl_s, const py::object& wait,
                      const py::object& checksum, const py::object& name_space) {
  const auto space = self.open();
  const KvNamespace names = kv_namespace(self, name_space);
  const std::string_view wanted = kv_key(key);
  const KvPutOptions options = kv_put_options(parent, ttl_s, wait, checksum);
  KvWrite begun = take(without_gil([&] { return space->begin_put(names, wanted, nbytes, options); }));
  return {std::make_shared<KvWriteObject::Held>(KvWriteObject::Held{space, std::move(begun)}), {}};
}

py::object kv_array_to_fill(KvWriteObject& self, const py::object& dtype, const py::object& shape) {
  py::object array = numpy_of(kv_shaped(self.array(), dtype, shape));
  self.handed_out.push_back(py::weakref(array));
  return array;
}

// Those that numpy() gave and that are still there.
std::vector<py::object> kv_arrays_left(const KvWriteObject& self) {
  std::vector<py::object> arrays;
  for (const py::object& reference : self.handed_out)
    if (py::object array = reference(); !array.is_none()) arrays.push_back(std::move(array));
  return arrays;
}

// Takes the write out of the object, before the GIL is let go: another thread may end it, too. Arrays of it are
// not written through any more.
std::shared_ptr<KvWriteObject::Held> kv_end_write(KvWriteObject& self) {
  for (const py::object& array : kv_arrays_left(self)) array.attr("flags").attr("writeable") = false;
  self.handed_out.clear();
  return std::exchange(self.held, nullptr);
}

void kv_cancel(KvWriteObject& self) {
  auto held = kv_end_write(self);
  without_gil([&] { held.reset(); });
}

// A buffer that is still there could be stored to after others have found the block. Arrays of numpy() become
// read-only instead, which is all that they do without.
bool kv_publish(KvWriteObject& self) {
  if (self.held == nullptr) raise_closed("write");
  if (static_cast<size_t>(self.held.use_count()) > 1 + kv_arrays_left(self).size()) {
    PyErr_SetString(PyExc_BufferError,
                    "a buffer over this write is still there, or fill() runs: drop it before publish(), or "
                    "store through numpy()");
    throw py::error_already_set();
  }
  auto held = kv_end_write(self);
  const Status published = without_gil([&] {
    Status status = held->write.publish();
    held.reset();
    return status;
  });
  if (!published.ok() && published.error().code == ErrorCode::already_exists) return false;
  take(published);
  return true;
}

void kv_fill(const KvWriteObject& self, const py::object& data) {
  if (self.held == nullptr) raise_closed("write");
  const Bytes bytes(data, false);
  const auto held = self.held;
  take(without_gil([&] { return held->write.fill(bytes.get()); }));
}

void kv_leave_write(KvWriteObject& self, const py::object& type, const py::object&, const py::object&) {
  if (self.held == nullptr) return;
  if (type.is_none())
    kv_publish(self);
  else
    kv_cancel(self);
}

}  // namespace

ArrayView KvWriteObject::array() const {
  if (held == nullptr) raise_closed("write");
  return kv_bytes(held->write.bytes(), false, held);
}

void add_kv_write(py::module_& module) {
  py::class_<KvWriteObject>(module, "KvWrite",
                            "Room for a block of a KV space, to fill in place; published, or given up.",
                            exports_buffer<KvWriteObject>())
      .def_property_readonly(
          "nbytes", [](const KvWriteObject& self) { return self.array().bytes; }, "Bytes of the block.")
      .def(
          "__len__", [](const KvWriteObject& self) { return self.array().bytes; }, "As nbytes.")
      .def("numpy", &kv_array_to_fill, py::arg("dtype") = "uint8", py::arg("shape") = py::none(),
           "Its memory as an array, read-only once it is published or given up.")
      .def("fill", &kv_fill, py::arg("data"),
           "Copies all of the block in. Raises LeaseLost where stores to a buffer would end the process.")
      .def("publish", &kv_publish,
           "All find the block from now on. False: it was put meanwhile, and this one is given up. "
           "Raises BufferError while there is a buffer over it.")
      .def("cancel", &kv_cancel, "Gives it up, if it is not published.")
      .def(
          "__enter__", [](py::object self) { return self; }, "The write itself.")
      .def("__exit__", &kv_leave_write, "Publishes it; after an exception gives it up.");
}

void add_kv_writes(KvSpaceClass& spaces) {
  spaces
      .def(
          "put", &put, py::arg("key"), py::arg("data"), py::kw_only(), py::arg("parent") = py::none(),
          py::arg("ttl_s") = 0, py::arg("wait") = 0.05, py::arg("checksum") = py::none(),
          py::arg("namespace") = py::none(),
          "Copies a block in; all find it from then on. False: it was there already. parent: the key of the "
          "block before it in the prompt; ttl_s: seconds until it is gone by itself. Raises CapacityExhausted.")
      .def("put_many", &put_many, py::arg("blocks"), py::kw_only(), py::arg("parent") = py::none(),
           py::arg("chain") = false, py::arg("ttl_s") = 0, py::arg("wait") = 0.05,
           py::arg("checksum") = py::none(), py::arg("raises") = true, py::arg("namespace") = py::none(),
           "As put() of each, at once, of a dict or of pairs of key and data. chain: each is the parent of the "
           "next one. Raises what the first that failed would have, once all were tried; raises=False: gives "
           "the exception in the place of its answer.")
      .def("reserve", &reserve, py::arg("key"), py::arg("nbytes"), py::kw_only(),
           py::arg("parent") = py::none(), py::arg("ttl_s") = 0, py::arg("wait") = 0.05,
           py::arg("checksum") = py::none(), py::arg("namespace") = py::none(),
           "Room for a block, to fill in place: published at the end of `with`, given up by an exception. "
           "Raises AlreadyExists, CapacityExhausted.");
}

}  // namespace terrace::python
