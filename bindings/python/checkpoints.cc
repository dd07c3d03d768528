// SPDX-License-Identifier: Apache-2.0
// CheckpointDirectory and Checkpoint: a pool's tensors on the disk, as they were at one moment.
#include <string>
#include <vector>

#include "bindings/python/handles.h"
#include "bindings/python/transfers.h"
#include "bindings/python/values.h"

namespace terrace::python {
namespace {

std::vector<std::string> names_of(const py::object& given) {
  std::vector<std::string> names;
  if (given.is_none()) return names;
  if (py::isinstance<py::str>(given)) raise_invalid("tensors: a sequence of names, not one string");
  for (const py::handle name : py::iter(given)) {
    if (!py::isinstance<py::str>(name))
      raise_invalid("tensors: " + py::repr(name).cast<std::string>() + " is no name");
    names.push_back(name.cast<std::string>());
  }
  if (names.empty()) raise_invalid("tensors: no names; None is for all of them");
  return names;
}

py::object in_python(const CheckpointInfo& of) {
  return named("CheckpointInfo",
               py::dict(py::arg("name") = of.name, py::arg("tensors") = of.tensors,
                        py::arg("tensor_bytes") = of.tensor_bytes, py::arg("file_bytes") = of.file_bytes,
                        py::arg("created_unix_ns") = of.created_unix_ns, py::arg("file") = of.file));
}

CheckpointsObject open(const py::object& path, bool make) {
  const std::string where = path_of(path);
  auto opened = take(without_gil([&] { return CheckpointDirectory::open(where, make); }));
  return {std::move(opened), where};
}

CheckpointObject checkpoint(const CheckpointsObject& self, const std::string& name, const py::object& tensors,
                            const py::object& metadata, const py::object& room_bytes_max) {
  std::vector<std::shared_ptr<Tensor>> all;
  std::shared_ptr<TensorPool> pool;
  for (const py::handle item : py::iter(tensors)) {
    if (!py::isinstance<TensorObject>(item))
      raise_invalid("tensors: " + py::repr(item).cast<std::string>() + " is no terrace.Tensor of a pool");
    const auto& tensor = item.cast<const TensorObject&>();
    if (pool == nullptr) pool = tensor.pool;
    all.push_back(tensor.tensor);
  }
  if (pool == nullptr) raise_invalid("a checkpoint of no tensors");
  CheckpointOptions options;
  options.metadata = metadata_of(metadata);
  if (!room_bytes_max.is_none()) options.room_bytes_max = room_bytes_max.cast<uint64_t>();
  auto write = take(without_gil([&] { return self.directory->checkpoint(name, *pool, all, options); }));
  return {ends_without_gil<CheckpointWrite>(std::move(write)), name};
}

void wait(const CheckpointObject& self, const py::object& timeout) {
  take(patiently(
      nanoseconds(timeout), [&](uint64_t wait_ns) { return self.write->wait(wait_ns); },
      [&] { return self.write->done(); }));
}

void leave(const CheckpointObject& self, const py::object& type, const py::object&, const py::object&) {
  if (type.is_none()) return wait(self, py::none());
  self.write->cancel();  // what went wrong in the block is what is told
  without_gil([&] { (void)self.write->wait(UINT64_MAX); });
}

py::object progress(const CheckpointObject& self) {
  const CheckpointProgress of = without_gil([&] { return self.write->progress(); });
  return named(
      "CheckpointProgress",
      py::dict(py::arg("file_bytes") = of.file_bytes, py::arg("written_bytes") = of.written_bytes,
               py::arg("pause_ns") = of.pause_ns, py::arg("snapshot_bytes") = of.snapshot_bytes,
               py::arg("copied_bytes") = of.copied_bytes,
               py::arg("copied_at_once_bytes") = of.copied_at_once_bytes, py::arg("room_bytes") = of.room_bytes,
               py::arg("waits_for_room") = of.waits_for_room, py::arg("reason") = of.reason));
}

py::object restore(const CheckpointsObject& self, const std::string& name, const PoolObject& into,
                   const py::object& tensors, bool into_existing, const py::object& hint, bool read_mostly,
                   bool streaming, bool pinned) {
  PoolImportOptions options;
  options.tensors = names_of(tensors);
  options.into_existing = into_existing;
  options.hint = hint_of(hint);
  options.flags = flags_of(read_mostly, streaming, pinned);
  const auto pool = into.open();
  PoolImport back =
      interruptibly(options, [&](const auto& with) { return self.directory->restore(name, *pool, with); });
  py::dict found, metadata;
  for (auto& tensor : back.tensors) {
    const std::string called = tensor->name();
    found[py::str(called)] = py::cast(TensorObject{kept_by(pool, std::move(tensor)), 0, pool});
  }
  for (const auto& [key, value] : back.metadata) metadata[py::str(key)] = value;
  return named("Restored", py::dict(py::arg("tensors") = found, py::arg("metadata") = metadata));
}

py::object list(const CheckpointsObject& self) {
  const CheckpointList of = take(without_gil([&] { return self.directory->list(); }));
  py::list checkpoints;
  py::dict damaged;
  for (const CheckpointInfo& info : of.checkpoints) checkpoints.append(in_python(info));
  for (const auto& each : of.damaged) damaged[py::str(each.name)] = each.error.to_string();
  return named("CheckpointList", py::dict(py::arg("checkpoints") = checkpoints, py::arg("damaged") = damaged,
                                          py::arg("half_written") = of.half_written,
                                          py::arg("being_written") = of.being_written));
}

py::list verify(const CheckpointsObject& self, const std::string& name) {
  TransferOptions options;
  const CheckpointVerification of =
      interruptibly(options, [&](const auto& with) { return self.directory->verify(name, with); });
  py::list damaged;
  for (const auto& part : of.damaged) damaged.append(py::make_tuple(part.begin, part.end));
  return damaged;
}

py::object import_file(const CheckpointsObject& self, const py::object& file, const std::string& name) {
  const std::string path = path_of(file);
  TransferOptions options;
  return in_python(
      interruptibly(options, [&](const auto& with) { return self.directory->import_file(path, name, with); }));
}

py::object export_file(const CheckpointsObject& self, const std::string& name, const py::object& file,
                       const py::object& tensors, bool replace) {
  const std::string path = path_of(file);
  CheckpointExportOptions options;
  options.tensors = names_of(tensors);
  return in_python(interruptibly(
      options, [&](const auto& with) { return self.directory->export_file(name, path, replace, with); }));
}

void add_writes(py::module_& module) {
  py::class_<CheckpointObject>(module, "Checkpoint",
                               "A checkpoint that is being written; given up where it is dropped before.")
      .def_property_readonly(
          "name", [](const CheckpointObject& self) { return self.name; }, "As it was given.")
      .def_property_readonly(
          "done", [](const CheckpointObject& self) { return self.write->done(); },
          "Whether it is written, or failed.")
      .def_property_readonly("progress", &progress, "How much is written, and how long stores had to wait.")
      .def("wait", &wait, py::arg("timeout") = py::none(),
           "Waits until it is on the disk. Raises Busy: not yet, or why it failed.")
      .def(
          "cancel", [](const CheckpointObject& self) { self.write->cancel(); },
          "Gives it up; nothing of it is left.")
      .def(
          "__enter__", [](py::object self) { return self; }, "The checkpoint itself.")
      .def("__exit__", &leave, "Waits for it; after an exception gives it up.")
      .def("__repr__", [](const CheckpointObject& self) {
        return "<terrace.Checkpoint " + quoted_name(self.name) + (self.write->done() ? " done>" : ">");
      });
}

}  // namespace

void add_checkpoints(py::module_& module) {
  add_writes(module);
  py::class_<CheckpointsObject>(module, "CheckpointDirectory",
                                "Checkpoints of tensors: complete ones, by name.")
      .def(py::init(&open), py::arg("path"), py::kw_only(), py::arg("make") = true,
           "A directory of checkpoints. make=False: it must exist.")
      .def("checkpoint", &checkpoint, py::arg("name"), py::arg("tensors"), py::kw_only(),
           py::arg("metadata") = py::none(), py::arg("room_bytes_max") = py::none(),
           "Begins to write the tensors as they are now; nobody stores to them during this call.")
      .def("restore", &restore, py::arg("name"), py::arg("pool"), py::arg("tensors") = py::none(),
           py::kw_only(), py::arg("into_existing") = false, py::arg("hint") = "weights",
           py::arg("read_mostly") = true, py::arg("streaming") = false, py::arg("pinned") = false,
           "Reads tensors of a checkpoint into a pool: all, or those named. into_existing=True fills tensors "
           "that the pool has.")
      .def("list", &list, "What there is, and what is damaged.")
      .def(
          "find",
          [](const CheckpointsObject& self, const std::string& name) {
            return in_python(take(without_gil([&] { return self.directory->find(name); })));
          },
          py::arg("name"), "One by its name. Raises NotFound, Corrupt.")
      .def("verify", &verify, py::arg("name"),
           "The damaged parts of its file, as (offset, bytes); an empty list: all is well.")
      .def("import_file", &import_file, py::arg("file"), py::arg("name"),
           "Makes a checkpoint of a safetensors file.")
      .def("export_file", &export_file, py::arg("name"), py::arg("file"), py::arg("tensors") = py::none(),
           py::kw_only(), py::arg("replace") = false,
           "Writes a checkpoint, or tensors of it, to a safetensors file.")
      .def(
          "delete",
          [](const CheckpointsObject& self, const std::string& name) {
            take(without_gil([&] { return self.directory->remove(name); }));
          },
          py::arg("name"), "Removes one.")
      .def("__repr__", [](const CheckpointsObject& self) {
        return "<terrace.CheckpointDirectory " + quoted_name(self.path) + ">";
      });
}

}  // namespace terrace::python
