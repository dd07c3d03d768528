// SPDX-License-Identifier: Apache-2.0
// Memory that Python gives: leases, mappings, files, and whatever has the buffer protocol.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/base/unique_fd.h"

namespace terrace {
class Lease;
}

namespace terrace::python {

namespace py = pybind11;

// Memory for a space, with what keeps it mapped, and its lease where it is one's.
struct Memory {
  std::span<std::byte> bytes;
  std::shared_ptr<void> keep;
  std::shared_ptr<Lease> lease = nullptr;
  UniqueFd file = {};  // of memory_of_file()
};

// A Lease or a Mapping, which must not be read-only; or an mmap object, a bytearray, ..., which stays exported as
// long as the memory is kept. `where` is for errors.
Memory memory_of(const py::object& given, const char* where);
// All of a file. bytes: makes it, if need be, and so long.
Memory memory_of_file(const std::string& path, std::optional<uint64_t> bytes, const char* where);

// The bytes of a Python object while this lives, one behind the other.
class Bytes {
 public:
  Bytes(const py::object& object, bool writable);
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes();
  std::span<std::byte> get() const {
    return {static_cast<std::byte*>(buffer_.buf), static_cast<size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_{};
};

}  // namespace terrace::python
