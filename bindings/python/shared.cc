// SPDX-License-Identifier: Apache-2.0
// SharedTensor: reading by copy and in place, writing in place.
#include <string>

#include "bindings/python/handles.h"
#include "bindings/python/memory.h"
#include "bindings/python/values.h"

namespace terrace::python {
namespace {

ArrayView view_of(const SharedTensor& tensor, const std::byte* data, bool read_only) {
  return {.data = const_cast<std::byte*>(data),  // NOLINT: read_only says whether it may be stored to
          .dtype = tensor.dtype(),
          .shape = tensor.shape(),
          .strides = tensor.strides(),
          .read_only = read_only,
          .bytes = tensor.bytes()};
}

// What a reader copies into: the caller's, or a new numpy array.
py::object place_for(const SharedTensor& tensor, const py::object& out) {
  if (!out.is_none()) return out;
  auto memory = std::shared_ptr<std::byte[]>(new std::byte[std::max<uint64_t>(tensor.bytes(), 1)]);
  ArrayView view = view_of(tensor, memory.get(), false);
  view.keep = std::move(memory);
  return numpy_of(view);
}

py::tuple read(const SharedObject& self, const py::object& out, uint64_t known, const py::object& wait) {
  py::object place = place_for(self.tensor, out);
  const Bytes bytes(place, true);
  const uint64_t version = take(patiently(nanoseconds(wait), [&](uint64_t wait_ns) {
    return self.space->read(self.tensor, bytes.get(), known, wait_ns);
  }));
  if (out.is_none() && known != 0 && version == known) place = py::none();  // nothing was copied
  return py::make_tuple(place, version);
}

uint64_t publish(const SharedObject& self, const py::object& data, const py::object& wait) {
  const Bytes bytes(data, false);
  return take(patiently(nanoseconds(wait), [&](uint64_t wait_ns) {
    return self.space->publish(self.tensor, bytes.get(), wait_ns);
  }));
}

uint64_t wait_for_version(const SharedObject& self, uint64_t version, const py::object& timeout) {
  return take(patiently(nanoseconds(timeout), [&](uint64_t wait_ns) {
    return self.space->wait_for_version(self.tensor, version, wait_ns);
  }));
}

PinObject pin(const SharedObject& self, const py::object& wait) {
  auto held = std::make_shared<PinObject::Held>();
  held->space = self.space;
  held->pin = take(
      patiently(nanoseconds(wait), [&](uint64_t wait_ns) { return self.space->pin(self.tensor, wait_ns); }));
  return {std::move(held), self.tensor};
}

WriteObject write(const SharedObject& self, const py::object& wait) {
  TensorWrite begun = take(
      patiently(nanoseconds(wait), [&](uint64_t wait_ns) { return self.space->write(self.tensor, wait_ns); }));
  WriteObject object;
  object.space = self.space;
  object.write.emplace(std::move(begun));
  object.tensor = self.tensor;
  return object;
}

// Out of the object, before the GIL is let go: another thread may end it, too.
std::optional<TensorWrite> take_write(WriteObject& self) {
  std::optional<TensorWrite> write(std::move(self.write));
  self.write.reset();
  return write;
}

// The write is the array's base: it is not given up before its arrays are gone, and numpy asks it whether an
// array may be made writable again.
py::object array_of(const py::object& owner) {
  auto& self = owner.cast<WriteObject&>();
  py::object array = numpy_of(self.array(), owner);
  self.handed_out.push_back(py::weakref(array));
  return array;
}

// The arrays are not written through any more: the next version is somebody else's to make.
void end_arrays(WriteObject& self) {
  for (const py::object& reference : std::exchange(self.handed_out, {}))
    if (const py::object array = reference(); !array.is_none()) array.attr("flags").attr("writeable") = false;
}

void end_write(WriteObject& self) {
  end_arrays(self);
  auto write = take_write(self);
  without_gil([&] { write.reset(); });
}

uint64_t publish_write(WriteObject& self) {
  if (!self.write) raise_invalid("tensor " + quoted_name(self.tensor.name()) + ": this write is over");
  end_arrays(self);
  auto write = take_write(self);
  self.version = without_gil([&] {
    const uint64_t version = write->publish();
    write.reset();
    return version;
  });
  if (self.version == 0) {
    if (const Status health = self.space->health(); !health.ok()) raise(health.error());
    raise(Error{ErrorCode::cancelled, 0, "SharedTensor.write",
                "a forked child publishes nothing: attach the space in the child"});
  }
  return self.version;
}

void leave_write(WriteObject& self, const py::object& type, const py::object&, const py::object&) {
  if (!self.write) return;
  if (type.is_none())
    publish_write(self);
  else
    end_write(self);
}

std::string text_of(const SharedObject& self) {
  return "<terrace.SharedTensor " + quoted_name(self.tensor.name()) + " " +
         std::string(dtype_name(self.tensor.dtype())) + " " + self.tensor.shape().to_string() + ">";
}

void add_pin(py::module_& module) {
  auto pins =
      py::class_<PinObject>(module, "SharedPin", "A version that stays as it is while somebody has it.",
                            exports_buffer<PinObject>())
          .def_property_readonly(
              "version",
              [](const PinObject& self) {
                if (self.held == nullptr) raise_closed("pin");
                return self.held->pin.version();
              },
              "Which version it is.")
          .def(
              "numpy", [](const PinObject& self) { return numpy_of(self.array()); }, "A read-only array.")
          .def(
              "close", [](PinObject& self) { self.held.reset(); }, "Lets it go once its arrays are gone.")
          .def(
              "__enter__", [](const PinObject& self) { return numpy_of(self.array()); },
              "A read-only numpy array of it.")
          .def(
              "__exit__", [](PinObject& self, const py::args&) { self.held.reset(); }, "As close().");
  add_dlpack<PinObject>(pins);
}

void add_write(py::module_& module) {
  py::class_<WriteObject>(module, "SharedWrite", "A slot that is being filled; published, or given up.",
                          exports_buffer<WriteObject>())
      .def_property_readonly(
          "version", [](const WriteObject& self) { return self.version; }, "Which version it will be.")
      .def("numpy", &array_of, "Its memory as a numpy array, read-only once it is published.")
      .def("publish", &publish_write, "Publishes it; the version's number.")
      .def("close", &end_write, "Gives it up, if it is not published.")
      .def("__enter__", &array_of, "Its memory as a numpy array.")
      .def("__exit__", &leave_write, "Publishes it; after an exception gives it up.");
}

}  // namespace

ArrayView PinObject::array() const {
  if (held == nullptr) raise_closed("pin");
  ArrayView view = view_of(tensor, held->pin.bytes().data(), true);
  view.keep = held;
  return view;
}

ArrayView WriteObject::array() const {
  if (!write) raise_invalid("tensor " + quoted_name(tensor.name()) + ": this write is over");
  ArrayView view = view_of(tensor, write->bytes().data(), false);
  view.keep = space;
  return view;
}

void add_shared(py::module_& module) {
  add_pin(module);
  add_write(module);
  py::class_<SharedObject>(module, "SharedTensor", "A tensor of a space.")
      .def_property_readonly(
          "name", [](const SharedObject& self) { return std::string(self.tensor.name()); },
          "As it was created.")
      .def_property_readonly(
          "dtype", [](const SharedObject& self) { return std::string(dtype_name(self.tensor.dtype())); },
          "As safetensors names it: 'F32', 'BF16'.")
      .def_property_readonly(
          "shape", [](const SharedObject& self) { return tuple_of(self.tensor.shape()); },
          "Elements a dimension.")
      .def_property_readonly(
          "nbytes", [](const SharedObject& self) { return self.tensor.bytes(); }, "Bytes of one version.")
      .def_property_readonly(
          "hint", [](const SharedObject& self) { return std::string(hint_name(self.tensor.hint())); },
          "What it is for: 'weights', 'none', ...")
      .def_property_readonly(
          "strides",
          [](const SharedObject& self) { return tuple_of(self.tensor.strides(), self.tensor.shape().rank()); },
          "In elements.")
      .def_property_readonly(
          "read_mostly",
          [](const SharedObject& self) { return (self.tensor.flags() & TensorFlags::read_mostly) != 0; },
          "Whether copies of it are cheap.")
      .def_property_readonly(
          "streaming",
          [](const SharedObject& self) { return (self.tensor.flags() & TensorFlags::streaming) != 0; },
          "Whether each byte is used once a step.")
      .def_property_readonly(
          "peers_may_remove",
          [](const SharedObject& self) { return (self.tensor.flags() & TensorFlags::peers_may_remove) != 0; },
          "Whether holders of other parts may have it removed.")
      .def_property_readonly(
          "flags", [](const SharedObject& self) { return self.tensor.flags(); },
          "read_mostly 1, streaming 2, peers_may_remove 8.")
      .def_property_readonly(
          "identity",
          [](const SharedObject& self) {
            const auto& [memory, part, record, incarnation] = self.tensor.identity();
            return named("TensorIdentity", py::dict(py::arg("memory") = reinterpret_cast<uintptr_t>(memory),
                                                    py::arg("part") = part, py::arg("record") = record,
                                                    py::arg("incarnation") = incarnation));
          },
          "Which tensor it is: another one of the same name has another.")
      .def_property_readonly(
          "part", [](const SharedObject& self) { return self.tensor.part(); }, "The part that it lies in.")
      .def_property_readonly(
          "double_buffered", [](const SharedObject& self) { return self.tensor.double_buffered(); },
          "Whether readers have a version while the next one is written.")
      .def_property_readonly(
          "version",
          [](const SharedObject& self) {
            return take(without_gil([&] { return self.space->version(self.tensor); }));
          },
          "The newest published one; 0: none yet.")
      .def(
          "is_current",
          [](const SharedObject& self, uint64_t version) {
            return self.space->is_current(self.tensor, version);
          },
          py::arg("version"), "Whether that version is the newest.")
      .def("read", &read, py::arg("out") = py::none(), py::kw_only(), py::arg("known") = 0,
           py::arg("wait") = 0.0,
           "A copy of the newest version, and its number; (None, known) where it is still version `known`. "
           "out: a buffer for it.")
      .def("pin", &pin, py::kw_only(), py::arg("wait") = 0.0,
           "The newest version in place, kept from its writer until it is let go.")
      .def("write", &write, py::kw_only(), py::arg("wait") = 0.0,
           "The next version's memory; published at the end of `with`, given up by an exception.")
      .def("publish", &publish, py::arg("data"), py::kw_only(), py::arg("wait") = 0.0,
           "Copies data in as the next version, whose number it gives.")
      .def("wait_for_version", &wait_for_version, py::arg("version"), py::arg("timeout") = py::none(),
           "Waits until that version or a later one is there, and gives its number. Raises Busy.")
      .def(
          "remove",
          [](const SharedObject& self, const py::object& wait) {
            take(patiently(nanoseconds(wait),
                           [&](uint64_t wait_ns) { return self.space->remove(self.tensor, wait_ns); }));
          },
          py::kw_only(), py::arg("wait") = 0.0, "Removes it; readers that have it pinned keep their version.")
      .def(
          "__reduce__",
          [](const SharedObject& self) {
            const auto& [memory, part, record, incarnation] = self.tensor.identity();
            return py::make_tuple(py::module_::import("terrace._models").attr("reopen_shared"),
                                  py::make_tuple(place_of(self.place), std::string(self.tensor.name()), part,
                                                 record, incarnation));
          },
          "By reference: who unpickles it opens the same lease. Raises TypeError for memory that is no "
          "lease's.")
      .def("__repr__", &text_of);
}

}  // namespace terrace::python
