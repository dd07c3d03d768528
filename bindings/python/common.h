// SPDX-License-Identifier: Apache-2.0
// Shared by the parts of the Python module: errors that become exceptions, waits without the GIL, and
// references that keep objects alive.
//
// Threads   Everything here is called with the GIL held, except what runs inside without_gil().
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/base/result.h"

namespace terrace::python {

namespace py = pybind11;

// The exception of the error's code, with its whole text (terrace/_errors.py).
py::object exception_of(const Error& error);
// Throws it.
[[noreturn]] void raise(const Error& error);

template <typename Value>
Value take(Result<Value> result) {
  if (!result.ok()) raise(result.error());
  return std::move(result).value();
}
inline void take(const Status& status) {
  if (!status.ok()) raise(status.error());
}

// Where a thread stays that Python ended because the interpreter is ending: its stack would be unwound without
// the GIL, through what has Python objects to let go.
[[noreturn]] void stay_until_exit() noexcept;

// Other threads have the GIL while this lives; nothing where this thread has not got it, as in destructors.
class GilLetGo {
 public:
  GilLetGo() : state_(Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}
  ~GilLetGo() {
    try {
      if (state_ != nullptr) PyEval_RestoreThread(state_);
    } catch (...) {  // pthread_exit()'s, for a daemon thread at the end
      stay_until_exit();
    }
  }
  GilLetGo(const GilLetGo&) = delete;
  GilLetGo& operator=(const GilLetGo&) = delete;

 private:
  PyThreadState* state_;
};

// Other Python threads run meanwhile. `call` must not touch a Python object.
template <typename Call>
auto without_gil(Call&& call) {
  const GilLetGo released;
  return std::forward<Call>(call)();
}

// For what waits for threads when it goes: sessions, pools, spaces.
template <typename Thing>
std::shared_ptr<Thing> ends_without_gil(std::shared_ptr<Thing> thing) {
  Thing* const address = thing.get();
  return std::shared_ptr<Thing>(address, [kept = std::move(thing)](Thing*) mutable {
    const GilLetGo released;
    kept.reset();
  });
}

// `part`, and `whole` for as long as somebody has the part: a lease its session, a tensor its pool.
template <typename Part, typename Whole>
std::shared_ptr<Part> kept_by(std::shared_ptr<Whole> whole, std::shared_ptr<Part> part) {
  struct Both {
    std::shared_ptr<Whole> whole;
    std::shared_ptr<Part> part;  // goes first
  };
  Part* const address = part.get();
  return std::shared_ptr<Part>(std::make_shared<Both>(Both{std::move(whole), std::move(part)}), address);
}

// Repeats `call(wait_ns)` in short waits while it answers busy and there is time, so that Ctrl-C is heard. Once
// over(), busy is no longer "not yet" but how the thing ended.
template <typename Call, typename Over>
auto patiently(uint64_t wait_ns, Call&& call, Over&& over) {
  constexpr uint64_t slice_ns = 100'000'000;
  while (true) {
    const uint64_t now_ns = std::min(wait_ns, slice_ns);
    auto result = without_gil([&] { return call(now_ns); });
    if (result.ok() || result.error().code != ErrorCode::busy || wait_ns <= now_ns) return result;
    if (over()) return without_gil([&] { return call(uint64_t{0}); });
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    wait_ns -= now_ns;
  }
}
template <typename Call>
auto patiently(uint64_t wait_ns, Call&& call) {
  return patiently(wait_ns, std::forward<Call>(call), [] { return false; });
}

// Of the module, one part each.
void add_sessions(py::module_& module);
void add_pools(py::module_& module);
void add_tensors(py::module_& module);
void add_checkpoints(py::module_& module);
void add_spaces(py::module_& module);
void add_shared(py::module_& module);
void add_models(py::module_& module);
void add_kv(py::module_& module);

}  // namespace terrace::python
