// SPDX-License-Identifier: Apache-2.0
// Tensor, its guards and moves.
#include <array>
#include <string>
#include <utility>

#include "bindings/python/devices.h"
#include "bindings/python/handles.h"
#include "bindings/python/values.h"

namespace terrace::python {
namespace {

// One dimension after the other of what `key` picks: the new view's shape, strides and first element.
class Index {
 public:
  explicit Index(const TensorObject& of)
      : tensor_(*of.tensor), offset_(of.offset), empty_(tensor_.bytes().empty()) {}

  void pick(py::handle key) {
    const py::tuple items =
        py::isinstance<py::tuple>(key) ? py::reinterpret_borrow<py::tuple>(key) : py::make_tuple(key);
    size_t named = 0;
    bool open = false;
    for (const py::handle item : items) {
      if (!item.is_none() && item.ptr() != Py_Ellipsis) ++named;
      if (item.ptr() == Py_Ellipsis && std::exchange(open, true)) raise_index("more than one ...");
    }
    const uint32_t rank = tensor_.shape().rank();
    if (named > rank) raise_index(std::to_string(named) + " indices");
    for (const py::handle item : items) {
      if (item.is_none())
        add(1, 0);
      else if (item.ptr() == Py_Ellipsis)
        for (size_t more = rank - named; more > 0; --more) all();
      else if (PySlice_Check(item.ptr()) != 0)
        slice(item);
      else
        one(item);
    }
    while (at_ < rank) all();
  }

  TensorObject view() const {
    const Shape shape = take(Shape::from({dimensions_.data(), rank_}));
    return {take(tensor_.as_strided(shape, strides_, static_cast<uint64_t>(offset_))), offset_};
  }

 private:
  [[noreturn]] void raise_index(const std::string& what) const {
    throw py::index_error("tensor " + quoted_name(tensor_.name()) + ": " + what + " for " +
                          tensor_.shape().to_string());
  }

  void add(uint64_t dimension, int64_t stride) {
    if (rank_ == Shape::rank_max) raise_index("more than eight dimensions");
    dimensions_[rank_] = dimension;
    strides_[rank_++] = stride;
  }

  void all() {
    add(tensor_.shape()[at_], tensor_.strides()[at_]);
    ++at_;
  }

  void one(py::handle item) {
    const py::ssize_t size = static_cast<py::ssize_t>(tensor_.shape()[at_]);
    if (PyIndex_Check(item.ptr()) == 0)
      throw py::type_error("a tensor is indexed by integers, slices, ... and None; not by " +
                           py::repr(py::type::of(item)).cast<std::string>());
    const py::ssize_t given = PyNumber_AsSsize_t(item.ptr(), PyExc_IndexError);
    if (given == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    const py::ssize_t index = given < 0 ? given + size : given;
    if (index < 0 || index >= size)
      raise_index("index " + std::to_string(given) + " is outside dimension " + std::to_string(at_));
    if (!empty_) offset_ += index * tensor_.strides()[at_];
    ++at_;
  }

  void slice(py::handle item) {
    const py::ssize_t size = static_cast<py::ssize_t>(tensor_.shape()[at_]);
    py::ssize_t start = 0, stop = 0, step = 0;
    if (PySlice_Unpack(item.ptr(), &start, &stop, &step) != 0) throw py::error_already_set();
    const py::ssize_t length = PySlice_AdjustIndices(size, &start, &stop, step);
    const int64_t stride = tensor_.strides()[at_];
    if (length > 0 && !empty_) offset_ += start * stride;
    add(static_cast<uint64_t>(length), length > 1 ? stride * step : stride);
    ++at_;
  }

  Tensor& tensor_;
  int64_t offset_;
  bool empty_;
  uint32_t at_ = 0;  // the dimension that comes next
  std::array<uint64_t, Shape::rank_max> dimensions_{};
  Strides strides_{};
  uint32_t rank_ = 0;
};

// A view keeps the pool as its tensor does.
TensorObject kept(const TensorObject& base, TensorObject view) {
  return {kept_by(base.tensor, std::move(view.tensor)), view.offset, base.pool};
}

TensorObject get_item(const TensorObject& self, const py::object& key) {
  Index index(self);
  index.pick(key);
  return kept(self, index.view());
}

TensorObject as_strided(const TensorObject& self, const py::object& shape, const py::object& strides,
                        uint64_t offset) {
  const Shape wanted = shape_of(shape);
  const Strides how = strides_of(strides, wanted.rank());
  return kept(self, {take(self.tensor->as_strided(wanted, how, offset)), static_cast<int64_t>(offset)});
}

MoveObject moved(const TensorObject& self, Result<std::shared_ptr<MoveHandle>> handle) {
  return {self.tensor, take(std::move(handle))};
}

GuardObject open_guard(const py::object& owner, bool for_write, bool hold, const py::object& wait) {
  const auto& self = owner.cast<const TensorObject&>();
  GuardOptions options{.hold = hold};
  if (!wait.is_none()) options.wait = guard_wait_of(wait.cast<std::string>());
  GuardObject guard;
  guard.tensor = owner;
  guard.view = self.array();
  guard.view.read_only = !for_write;
  if (for_write)
    guard.write = take(without_gil([&] { return self.tensor->write(options); }));
  else
    guard.read = take(without_gil([&] { return self.tensor->read(options); }));
  return guard;
}

void close_guard(GuardObject& guard) {
  // Taken out first: another thread may close it, too.
  auto read = std::exchange(guard.read, std::nullopt);
  auto write = std::exchange(guard.write, std::nullopt);
  without_gil([&] {
    read.reset();
    write.reset();
  });
}

// The guard is the array's base: numpy asks the base whether an array may be made writable.
py::object array_of(const py::object& guard) {
  return numpy_of(guard.cast<const GuardObject&>().view, guard);
}

// numpy is not needed to use guards.
py::object array_or_memory(const py::object& guard) {
  try {
    return array_of(guard);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ImportError)) throw;
  }
  return py::memoryview(guard);
}

std::string text_of(const TensorObject& self) {
  const Tensor& tensor = *self.tensor;
  return "<terrace.Tensor " + quoted_name(tensor.name()) + " " + std::string(dtype_name(tensor.dtype())) + " " +
         tensor.shape().to_string() + (tensor.is_view() ? " view>" : ">");
}

void advise(const TensorObject& self, const py::object& hint, const py::object& read_mostly,
            const py::object& streaming, const py::object& passes) {
  TensorAdvice advice;
  if (!hint.is_none()) advice.hint = hint_of(hint);
  uint8_t flags = self.tensor->flags();
  const auto change = [&](const py::object& to, uint8_t flag) {
    if (to.is_none()) return;
    flags = static_cast<uint8_t>(py::bool_(to) ? flags | flag : flags & ~flag);
    advice.flags = flags;
  };
  change(read_mostly, TensorFlags::read_mostly);
  change(streaming, TensorFlags::streaming);
  if (!passes.is_none()) {
    advice.passes = passes.cast<float>();
    if (!(*advice.passes >= 0)) raise_invalid("passes is negative, or no number");
  }
  self.tensor->advise(advice);
}

py::object statistics(const TensorObject& self) {
  const TensorStatistics of = self.tensor->statistics();
  return named(
      "TensorStatistics",
      py::dict(py::arg("reads") = of.reads, py::arg("writes") = of.writes,
               py::arg("uses_per_step") = of.uses_per_step, py::arg("guard_waits") = of.guard_waits,
               py::arg("guard_wait_ns") = of.guard_wait_ns, py::arg("pins") = of.pins,
               py::arg("device_reads") = of.device_reads, py::arg("device_writes") = of.device_writes));
}

py::object residency(const TensorObject& self) {
  const TensorResidency of = self.tensor->residency();
  return named("Residency",
               py::dict(py::arg("ddr_bytes") = of.ddr_bytes, py::arg("cxl_bytes") = of.cxl_bytes,
                        py::arg("hbm_bytes") = of.hbm_bytes, py::arg("hbm_dirty_bytes") = of.hbm_dirty_bytes));
}

void wait(const MoveObject& self, const py::object& timeout) {
  take(patiently(
      nanoseconds(timeout), [&](uint64_t wait_ns) { return self.handle->wait(wait_ns); },
      [&] { return self.handle->done(); }));
}

using Class = py::class_<TensorObject>;

void add_description(Class& tensor) {
  tensor.def_property_readonly("name", [](const TensorObject& self) { return self.tensor->name(); })
      .def_property_readonly(
          "dtype", [](const TensorObject& self) { return std::string(dtype_name(self.tensor->dtype())); })
      .def_property_readonly("shape", [](const TensorObject& self) { return tuple_of(self.tensor->shape()); })
      .def_property_readonly(
          "strides",
          [](const TensorObject& self) {
            return tuple_of(self.tensor->strides(), self.tensor->shape().rank());
          },
          "In elements.")
      .def_property_readonly("ndim", [](const TensorObject& self) { return self.tensor->shape().rank(); })
      .def_property_readonly("nbytes",
                             [](const TensorObject& self) {
                               return tensor_bytes(self.tensor->dtype(), self.tensor->shape()).value();
                             })
      .def_property_readonly(
          "address", [](const TensorObject& self) { return reinterpret_cast<uintptr_t>(self.tensor->data()); })
      .def_property_readonly(
          "hint", [](const TensorObject& self) { return std::string(hint_name(self.tensor->hint())); })
      .def_property_readonly(
          "read_mostly",
          [](const TensorObject& self) { return (self.tensor->flags() & TensorFlags::read_mostly) != 0; })
      .def_property_readonly(
          "streaming",
          [](const TensorObject& self) { return (self.tensor->flags() & TensorFlags::streaming) != 0; })
      .def_property_readonly("flags", [](const TensorObject& self) { return self.tensor->flags(); })
      .def_property_readonly("is_view", [](const TensorObject& self) { return self.tensor->is_view(); })
      .def_property_readonly("residency", &residency)
      .def_property_readonly("statistics", &statistics)
      .def("__len__",
           [](const TensorObject& self) {
             if (self.tensor->shape().rank() == 0) throw py::type_error("a scalar has no length");
             return self.tensor->shape()[0];
           })
      .def("__repr__", &text_of);
}

void add_moves(Class& tensor) {
  tensor
      .def(
          "pin",
          [](const TensorObject& self, const std::string& tier) {
            const Tier wanted = tier_of(tier);
            return moved(self, without_gil([&] { return self.tensor->pin(wanted); }));
          },
          py::arg("tier") = "ddr")
      .def("unpin", [](const TensorObject& self) { take(without_gil([&] { return self.tensor->unpin(); })); })
      .def(
          "prefetch",
          [](const TensorObject& self, const std::string& tier) {
            const Tier wanted = tier_of(tier);
            return moved(self, without_gil([&] { return self.tensor->prefetch(wanted); }));
          },
          py::arg("tier") = "ddr")
      .def(
          "move_to",
          [](const TensorObject& self, const std::string& tier) {
            const Tier wanted = tier_of(tier);
            return moved(self, without_gil([&] { return self.tensor->move_to(wanted); }));
          },
          py::arg("tier"))
      .def("advise", &advise, py::kw_only(), py::arg("hint") = py::none(), py::arg("read_mostly") = py::none(),
           py::arg("streaming") = py::none(), py::arg("passes") = py::none());
}

void add_helpers(py::module_& module) {
  py::class_<MoveObject>(module, "Move", "A move under way; it goes on without this object.")
      .def_property_readonly("done", [](const MoveObject& self) { return self.handle->done(); })
      .def_property_readonly("bytes_there", [](const MoveObject& self) { return self.handle->bytes_there(); })
      .def("wait", &wait, py::arg("timeout") = py::none());
  auto guard =
      py::class_<GuardObject>(module, "Guard", "An open use of a tensor.", exports_buffer<GuardObject>())
          .def("numpy", &array_of)
          .def("close", &close_guard)
          .def("__enter__", &array_or_memory)
          .def("__exit__", [](GuardObject& self, const py::args&) { close_guard(self); });
  add_dlpack<GuardObject>(guard);
}

}  // namespace

ArrayView TensorObject::array() const {
  return {.data = tensor->data(),
          .dtype = tensor->dtype(),
          .shape = tensor->shape(),
          .strides = tensor->strides(),
          .bytes = tensor->bytes().size(),
          .keep = tensor};
}

void add_tensors(py::module_& module) {
  add_helpers(module);
  Class tensor(module, "Tensor", "A tensor of a pool, or a view of one: its address stays, its bytes may move.",
               exports_buffer<TensorObject>());
  add_description(tensor);
  add_moves(tensor);
  add_device_use(tensor);
  tensor
      .def(
          "numpy",
          [](const py::object& self) { return numpy_of(self.cast<const TensorObject&>().array(), self); },
          "A numpy array over the same memory, which it keeps.")
      .def("__getitem__", &get_item, py::arg("key"))
      .def("as_strided", &as_strided, py::arg("shape"), py::arg("strides"), py::arg("offset") = 0)
      .def(
          "read",
          [](const py::object& self, bool hold, const py::object& how) {
            return open_guard(self, false, hold, how);
          },
          py::kw_only(), py::arg("hold") = false, py::arg("wait") = py::none())
      .def(
          "write",
          [](const py::object& self, bool hold, const py::object& how) {
            return open_guard(self, true, hold, how);
          },
          py::kw_only(), py::arg("hold") = false, py::arg("wait") = py::none());
  add_dlpack<TensorObject>(tensor);
}

}  // namespace terrace::python
