// SPDX-License-Identifier: Apache-2.0
// Long transfers, which go on without the GIL: Ctrl-C is heard meanwhile, and what the caller passed is called.
#pragma once

#include <chrono>
#include <utility>

#include "bindings/python/common.h"

namespace terrace::python {

// What is asked during a call that let the GIL go. Only the main thread is told of signals; others have nothing to
// ask there, and do not wait for the GIL unless there is something of Python's to call.
//
// Threads   Made with the GIL; called without it, on the thread of the call.
class Listener {
 public:
  // Both may be None. progress(done, total): bytes; cancelled(): a true value ends the transfer. What they raise
  // ends it, too, and is raised by the call.
  explicit Listener(const py::object& progress = py::none(), const py::object& cancelled = py::none())
      : progress_(progress), cancelled_(cancelled) {
    const py::module_ threading = py::module_::import("threading");
    main_ = threading.attr("current_thread")().is(threading.attr("main_thread")());
  }

  bool over() {
    const auto now = std::chrono::steady_clock::now();
    if (raised_ || (!main_ && cancelled_.is_none()) || now < next_) return raised_ || asked_;
    next_ = now + std::chrono::milliseconds(20);
    const py::gil_scoped_acquire gil;
    if (main_ && PyErr_CheckSignals() != 0) return raise();
    try {
      asked_ = asked_ || (!cancelled_.is_none() && py::bool_(cancelled_()));
    } catch (py::error_already_set& error) {
      error.restore();
      return raise();
    }
    return asked_;
  }

  // At most one call in 20 ms, but always the last one.
  void progress(uint64_t done, uint64_t total) {
    if (progress_.is_none() || raised_) return;
    const auto now = std::chrono::steady_clock::now();
    if (done != total && now < next_progress_) return;
    next_progress_ = now + std::chrono::milliseconds(20);
    const py::gil_scoped_acquire gil;
    try {
      progress_(done, total);
    } catch (py::error_already_set& error) {
      error.restore();
      raise();
    }
  }

  // With the GIL, once the call is over.
  void raise_what_was_raised() {
    if (!raised_) return;
    PyErr_Restore(type_.release().ptr(), value_.release().ptr(), trace_.release().ptr());
    throw py::error_already_set();
  }

 private:
  // Keeps the exception that is set: other calls of Python follow.
  bool raise() {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    type_ = py::reinterpret_steal<py::object>(type);
    value_ = py::reinterpret_steal<py::object>(value);
    trace_ = py::reinterpret_steal<py::object>(trace);
    return raised_ = true;
  }

  py::object progress_, cancelled_;
  bool main_ = false, raised_ = false, asked_ = false;
  py::object type_, value_, trace_;
  std::chrono::steady_clock::time_point next_ = {}, next_progress_ = {};
};

// `call` with these options, without the GIL and with an ear for Ctrl-C.
template <typename Options, typename Call>
auto interruptibly(Options& options, Call&& call, const py::object& progress = py::none(),
                   const py::object& cancelled = py::none()) {
  Listener listener(progress, cancelled);
  options.cancelled = [&listener] { return listener.over(); };
  if constexpr (requires { options.progress; }) {
    if (!progress.is_none())
      options.progress = [&listener](uint64_t done, uint64_t total) { listener.progress(done, total); };
  }
  auto result = without_gil([&] { return call(options); });
  listener.raise_what_was_raised();
  return take(std::move(result));
}

}  // namespace terrace::python
