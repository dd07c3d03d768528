// SPDX-License-Identifier: Apache-2.0
#include "libclient/guarded_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/check.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"
#include "core/os/fault_guard.h"

namespace terrace {
namespace {

constexpr const char* where = "Mapping::move";
constexpr size_t read_bytes_max = 8 * mib;
constexpr int pipe_bytes = 1 * mib;

Error target_fenced() {
  return {ErrorCode::cancelled, EFAULT, where, "the new memory was fenced during the copy; begin again"};
}
Error source_fenced() {
  return {ErrorCode::lease_expired, 0, where, "the lease's memory was fenced during the copy"};
}

}  // namespace

Status copy_guarded(int from_fd, std::span<const std::byte> from, std::span<std::byte> to) {
  TERRACE_CHECK(from.size() == to.size(), "a copy between ranges of different lengths");
  size_t done = 0;
  while (done < to.size()) {
    const size_t wanted = std::min(read_bytes_max, to.size() - done);
    const ssize_t got = ::pread(from_fd, to.data() + done, wanted, static_cast<off_t>(done));
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got == 0) {
      return source_fenced();
    } else if (errno == EFAULT) {
      return target_fenced();
    } else if (errno == EINVAL || errno == ENODEV || errno == ESPIPE || errno == EOPNOTSUPP) {
      return copy_through_pipe(from.subspan(done), to.subspan(done));  // no read() on this kind of memory
    } else if (errno != EINTR) {
      return os_error(errno, where, "cannot read the lease's memory");
    }
  }
  return {};
}

Status persist_guarded(const os::FileMap& to, std::span<const std::byte> bytes) {
  if (os::guarded([&] { to.persist(bytes); })) return {};
  return target_fenced();
}

Status copy_through_pipe(std::span<const std::byte> from, std::span<std::byte> to) {
  TERRACE_CHECK(from.size() == to.size(), "a copy between ranges of different lengths");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return os_error(errno, where, "cannot make a pipe");
  const UniqueFd out(ends[0]), in(ends[1]);
  const int granted = ::fcntl(in.get(), F_SETPIPE_SZ, pipe_bytes);  // without it the copy is only slower
  const size_t at_once = granted > 0 ? static_cast<size_t>(granted) : 16 * kib;
  size_t sent = 0, done = 0;
  while (done < to.size()) {
    if (sent == done) {
      const ssize_t put = ::write(in.get(), from.data() + sent, std::min(at_once, from.size() - sent));
      if (put > 0)
        sent += static_cast<size_t>(put);
      else if (errno == EFAULT)
        return source_fenced();
      else if (errno != EINTR)
        return os_error(errno, where, "cannot copy the lease's memory");
      continue;
    }
    const ssize_t got = ::read(out.get(), to.data() + done, sent - done);
    if (got > 0)
      done += static_cast<size_t>(got);
    else if (errno == EFAULT)
      return target_fenced();
    else if (errno != EINTR)
      return os_error(errno, where, "cannot copy the lease's memory");
  }
  return {};
}

}  // namespace terrace
