// SPDX-License-Identifier: Apache-2.0
// TensorSpace: memory that several processes share, as named tensors.
#include <string>

#include "bindings/python/handles.h"
#include "bindings/python/memory.h"
#include "bindings/python/values.h"

namespace terrace::python {
namespace {

void format(const py::object& given, uint32_t parts, uint32_t records_per_part, uint32_t pins_per_part,
            const py::object& coherence, const py::object& checksums, const py::object& seats,
            const py::object& ownership) {
  SpaceOptions options{.parts = parts, .records_per_part = records_per_part, .pins_per_part = pins_per_part};
  if (!coherence.is_none()) options.coherence = coherence_of(coherence.cast<std::string>());
  if (!seats.is_none()) options.seats = seats.cast<uint32_t>();
  if (!ownership.is_none()) options.ownership = ownership_of(ownership.cast<std::string>());
  if (!checksums.is_none()) options.checksums = static_cast<bool>(py::bool_(checksums));
  if (py::isinstance<LeaseObject>(given)) options.lease_epoch = given.cast<const LeaseObject&>().lease->epoch();
  const Memory memory = memory_of(given, "TensorSpace");
  take(without_gil([&] { return TensorSpace::format(memory.bytes, options); }));
}

std::shared_ptr<const SpacePlace> space_place(const py::object& memory) {
  if (!py::isinstance<LeaseObject>(memory)) return nullptr;
  const auto& of = memory.cast<const LeaseObject&>();
  return std::make_shared<const SpacePlace>(
      SpacePlace{.origin = of.origin, .lease = of.lease->id().value, .epoch = of.lease->epoch().value});
}

// own: None says that a part is claimed by the first call that needs one.
SpaceObject attach(const py::object& given, const py::object& fd, const py::object& own, const py::object& part,
                   uint64_t offset, uint64_t host) {
  Memory memory = memory_of(given, "TensorSpace");
  AttachOptions options;
  options.host = host;
  options.own_a_part = own.is_none() || py::bool_(own);
  if (own.is_none()) options.claim = PartClaim::when_needed;
  if (!part.is_none()) options.part = part.cast<uint32_t>();
  if (!fd.is_none())
    options.ownership = take(ownership_by_locks(fd.cast<int>(), offset));
  else if (memory.lease != nullptr)
    options.ownership = take(ownership_by_manager(memory.lease));
  else if (options.own_a_part)
    raise_invalid("whoever owns a part locks it in the memory's file: give its descriptor, fd=, or own=False");
  auto made = take(without_gil([&] { return TensorSpace::attach(memory.bytes, std::move(options)); }));
  std::shared_ptr<TensorSpace> space = std::move(made);
  return {ends_without_gil(kept_by(std::move(memory.keep), std::move(space))), space_place(given)};
}

SharedObject create(const SpaceObject& self, const std::string& name, const py::object& shape,
                    const py::object& dtype, const py::object& hint, bool double_buffered,
                    const py::object& wait, bool peers_may_remove, bool read_mostly, bool streaming) {
  const TensorSpec spec{.name = name,
                        .dtype = dtype_of(dtype),
                        .shape = shape_of(shape),
                        .hint = hint_of(hint),
                        .flags = flags_of(read_mostly, streaming, false)};
  const CreateOptions options{
      .double_buffered = double_buffered, .wait_ns = nanoseconds(wait), .peers_may_remove = peers_may_remove};
  const auto space = self.open();
  return {space, take(without_gil([&] { return space->create(spec, options); })), self.place};
}

SharedObject open(const SpaceObject& self, const std::string& name) {
  const auto space = self.open();
  return {space, take(without_gil([&] { return space->open(name); })), self.place};
}

bool contains(const SpaceObject& self, const std::string& name) {
  const auto space = self.open();
  auto found = without_gil([&] { return space->open(name); });
  if (!found.ok() && found.error().code == ErrorCode::not_found) return false;
  take(std::move(found));
  return true;
}

py::list list(const SpaceObject& self) {
  const auto space = self.open();
  std::vector<SharedTensor> tensors = without_gil([&] { return space->list(); });
  if (const Status health = space->health(); !health.ok()) raise(health.error());
  py::list objects;
  for (SharedTensor& tensor : tensors)
    objects.append(py::cast(SharedObject{space, std::move(tensor), self.place}));
  return objects;
}

}  // namespace

py::tuple place_of(const std::shared_ptr<const SpacePlace>& place) {
  if (place == nullptr || place->origin == nullptr)
    throw py::type_error(
        "a space of memory that is no lease's is not pickled: other processes cannot be told where it is");
  return py::make_tuple(place->lease, place->epoch, place->origin->socket, place->origin->tenant,
                        place->origin->host);
}

std::shared_ptr<TensorSpace> SpaceObject::open() const {
  if (space == nullptr) raise_closed("space");
  return space;
}

void add_spaces(py::module_& module) {
  const SpaceOptions defaults;
  py::class_<SpaceObject>(module, "TensorSpace",
                          "Named tensors in memory that several processes write and read.")
      .def_static("format", &format, py::arg("memory"), py::kw_only(), py::arg("parts") = defaults.parts,
                  py::arg("records_per_part") = defaults.records_per_part,
                  py::arg("pins_per_part") = defaults.pins_per_part, py::arg("coherence") = py::none(),
                  py::arg("checksums") = py::none(), py::arg("seats") = py::none(),
                  py::arg("ownership") = py::none(),
                  "Makes an empty space of the memory; what was there is lost.")
      .def(py::init(&attach), py::arg("memory"), py::kw_only(), py::arg("fd") = py::none(),
           py::arg("own") = py::none(), py::arg("part") = py::none(), py::arg("offset") = 0,
           py::arg("host") = 0,
           "Opens the space in a lease or other memory. own: whether it takes a part to write to (None: when "
           "it first needs one); fd: the memory's file, where it is no lease's.")
      .def("create", &create, py::arg("name"), py::arg("shape"), py::arg("dtype") = "float32", py::kw_only(),
           py::arg("hint") = py::none(), py::arg("double_buffered") = true, py::arg("wait") = 1.0,
           py::arg("peers_may_remove") = false, py::arg("read_mostly") = false, py::arg("streaming") = false,
           "A tensor that all see once it is published. Raises CapacityExhausted, AlreadyExists.")
      .def("open", &open, py::arg("name"), "The tensor of that name. Raises NotFound.")
      .def("__getitem__", &open, py::arg("name"), "As open().")
      .def(
          "__reduce__",
          [](const SpaceObject& self) {
            return py::make_tuple(py::module_::import("terrace._models").attr("reopen_space"),
                                  place_of(self.place));
          },
          "By reference: who unpickles it opens the same lease. Raises TypeError for memory that is no "
          "lease's.")
      .def("__contains__", &contains, py::arg("name"), "Whether there is a tensor of that name.")
      .def("list", &list, "All tensors.")
      .def_property_readonly(
          "part",
          [](const SpaceObject& self) -> py::object {
            const auto part = self.open()->part();
            return part ? py::object(py::int_(*part)) : py::object(py::none());
          },
          "The part that this process owns; None: none.")
      .def_property_readonly(
          "seat",
          [](const SpaceObject& self) -> py::object {
            const auto seat = self.open()->seat();
            return seat ? py::object(py::int_(*seat)) : py::object(py::none());
          },
          "The seat that it pins through; None: none.")
      .def_property_readonly(
          "coherence",
          [](const SpaceObject& self) {
            return self.open()->coherence() == SpaceCoherence::coherent ? "coherent" : "noncoherent";
          },
          "'coherent' or 'noncoherent': whether caches of other hosts see each store.")
      .def_property_readonly(
          "parts", [](const SpaceObject& self) { return self.open()->parts(); },
          "How many parts it was made with.")
      .def_property_readonly(
          "free_bytes",
          [](const SpaceObject& self) {
            const auto space = self.open();
            const uint64_t bytes = space->free_bytes();
            if (bytes == 0) take(space->health());
            return bytes;
          },
          "What this process could have now for tensors.")
      .def_property_readonly(
          "largest_free_bytes",
          [](const SpaceObject& self) {
            const auto space = self.open();
            const uint64_t bytes = space->largest_free_bytes();
            if (bytes == 0) take(space->health());
            return bytes;
          },
          "Of that, in one piece.")
      .def(
          "health", [](const SpaceObject& self) { take(self.open()->health()); },
          "Raises LeaseExpired where the space's memory is gone, and for good.")
      .def(
          "tend",
          [](const SpaceObject& self) {
            const auto space = self.open();
            return without_gil([&] { return space->tend(); });
          },
          "Removes what other holders wait for; for an owner that makes no other call. How many.")
      .def(
          "close", [](SpaceObject& self) { self.space.reset(); },
          "No more calls; its part is given back once its tensors, pins and writes are gone.")
      .def(
          "__enter__", [](py::object self) { return self; }, "The space itself.")
      .def(
          "__exit__", [](SpaceObject& self, const py::args&) { self.space.reset(); }, "As close().");
}

}  // namespace terrace::python
