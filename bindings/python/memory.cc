// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <utility>

#include "bindings/python/common.h"
#include "bindings/python/handles.h"

namespace terrace::python {
namespace {

Memory memory_of(std::shared_ptr<Mapping> mapping, const char* where) {
  const std::span<std::byte> bytes = mapping->bytes();
  if (bytes.empty())
    raise(Error{ErrorCode::permission_denied, 0, where, "the lease may only be read; a holder stores into it"});
  const std::shared_ptr<Lease> lease = mapping->lease();
  return {bytes, ends_without_gil(std::move(mapping)), lease};
}

Memory memory_of_buffer(py::handle object) {
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), buffer.get(), PyBUF_SIMPLE | PyBUF_WRITABLE) != 0)
    throw py::error_already_set();
  Py_buffer* const view = buffer.release();
  std::shared_ptr<void> keep(view->buf, [view](void*) {
    if (Py_IsInitialized() != 0) {
      try {
        const py::gil_scoped_acquire gil;
        PyBuffer_Release(view);
      } catch (...) {
        stay_until_exit();
      }
    }
    delete view;
  });
  return {{static_cast<std::byte*>(view->buf), static_cast<size_t>(view->len)}, std::move(keep)};
}

// Errors    as of the system's calls; invalid_argument: no file with bytes
Result<Memory> map_file(const std::string& path, std::optional<uint64_t> bytes, const char* where) {
  Memory memory;
  memory.file = UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC | (bytes ? O_CREAT : 0), 0600));
  if (!memory.file.valid()) return os_error(errno, where, "cannot open " + path);
  if (bytes && ::ftruncate(memory.file.get(), static_cast<off_t>(*bytes)) != 0)
    return os_error(errno, where, "cannot make " + path + " " + std::to_string(*bytes) + " bytes long");
  struct stat status {};
  if (::fstat(memory.file.get(), &status) != 0) return os_error(errno, where, "cannot look at " + path);
  if (!S_ISREG(status.st_mode) || status.st_size <= 0)
    return Error{ErrorCode::invalid_argument, 0, where,
                 path + " is no file with bytes: give format() a size, or memory of your own"};
  const auto length = static_cast<size_t>(status.st_size);
  void* const data = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, memory.file.get(), 0);
  if (data == MAP_FAILED) return os_error(errno, where, "cannot map " + path);
  memory.bytes = {static_cast<std::byte*>(data), length};
  memory.keep = std::shared_ptr<void>(data, [length](void* mapped) { (void)::munmap(mapped, length); });
  return memory;
}

}  // namespace

Memory memory_of(const py::object& given, const char* where) {
  if (py::isinstance<MappingObject>(given)) return memory_of(given.cast<const MappingObject&>().mapping, where);
  if (py::isinstance<LeaseObject>(given)) {
    const auto lease = given.cast<const LeaseObject&>().lease;
    return memory_of(std::shared_ptr<Mapping>(take(without_gil([&] { return Mapping::map(lease); }))), where);
  }
  return memory_of_buffer(given);
}

Memory memory_of_file(const std::string& path, std::optional<uint64_t> bytes, const char* where) {
  return take(without_gil([&] { return map_file(path, bytes, where); }));
}

Bytes::Bytes(const py::object& object, bool writable) {
  const int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) != 0) throw py::error_already_set();
}

Bytes::~Bytes() {
  PyBuffer_Release(&buffer_);
}

}  // namespace terrace::python
