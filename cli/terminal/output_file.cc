// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "core/base/unique_fd.h"

namespace terrace::cli {

Status write_atomically(const std::string& path, const std::string& text) {
  constexpr const char* where = "write_atomically";
  std::string beside = path + ".XXXXXX";
  const UniqueFd file(::mkostemp(beside.data(), O_CLOEXEC));
  if (!file.valid()) return os_error(errno, where, "cannot write beside " + path);
  // As any new file: mkostemp makes it for this user only.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  Status status;
  size_t done = 0;
  while (done < text.size() && status.ok()) {
    const ssize_t written = ::write(file.get(), text.data() + done, text.size() - done);
    if (written > 0)
      done += static_cast<size_t>(written);
    else if (errno != EINTR)
      status = os_error(errno, where, "cannot write " + path);
  }
  // What an older file of that name was may be needed after a crash: a certificate.
  if (status.ok() && ::fsync(file.get()) != 0) status = os_error(errno, where, "cannot write " + path);
  if (status.ok() && ::fchmod(file.get(), 0666 & ~mask) != 0)
    status = os_error(errno, where, "cannot write " + path);
  if (status.ok() && ::rename(beside.c_str(), path.c_str()) != 0)
    status = os_error(errno, where, "cannot put the file at " + path);
  if (!status.ok()) ::unlink(beside.c_str());
  return status;
}

}  // namespace terrace::cli
