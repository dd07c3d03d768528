// SPDX-License-Identifier: Apache-2.0
// POSIX AIO reads and writes of the program's memory with O_DIRECT, by libc's own threads. Moves ask the kernel
// for those pages; what is folded after a fork cannot be asked for, so nothing is folded any more.
#include <aio.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "allocator/preload/libc/export.h"
#include "allocator/preload/libc/raw_calls.h"
#include "allocator/preload/migration/fold_after_fork.h"
#include "allocator/preload/window/window.h"

namespace terrace::preload {
namespace {

void look_at(const aiocb* request) {
  if (request == nullptr || !in_window(const_cast<const void*>(request->aio_buf))) return;
  const long flags = terrace_raw_call(SYS_fcntl, request->aio_fildes, F_GETFL);
  if (flags >= 0 && (flags & O_DIRECT) != 0) never_fold();
}

template <typename Function>
Function* next_function(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int start(const char* name, aiocb* request) {
  look_at(request);
  auto* function = next_function<int(aiocb*)>(name);
  if (function != nullptr) return function(request);
  errno = ENOSYS;
  return -1;
}

}  // namespace
}  // namespace terrace::preload

using namespace terrace::preload;

TERRACE_EXPORT int aio_read(aiocb* request) {
  return start("aio_read", request);
}

TERRACE_EXPORT int aio_write(aiocb* request) {
  return start("aio_write", request);
}

TERRACE_EXPORT int lio_listio(int mode, aiocb* const* requests, int count, sigevent* event) {
  for (int i = 0; i < count; ++i) look_at(requests[i]);
  auto* function = next_function<int(int, aiocb* const*, int, sigevent*)>("lio_listio");
  if (function != nullptr) return function(mode, requests, count, event);
  errno = ENOSYS;
  return -1;
}

// The same functions by the names that programs with 64-bit offsets use; the structure is the same.
TERRACE_EXPORT int aio_read64(aiocb64* request) {
  return aio_read(reinterpret_cast<aiocb*>(request));
}

TERRACE_EXPORT int aio_write64(aiocb64* request) {
  return aio_write(reinterpret_cast<aiocb*>(request));
}

TERRACE_EXPORT int lio_listio64(int mode, aiocb64* const* requests, int count, sigevent* event) {
  return lio_listio(mode, reinterpret_cast<aiocb* const*>(requests), count, event);
}
