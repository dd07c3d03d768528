// SPDX-License-Identifier: Apache-2.0
// A file that appears under its name all at once, or not at all: written under a temporary name in the same
// directory, synced, renamed, the directory synced.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace {

// Deleted again unless it was committed.
class TemporaryFile {
 public:
  // For a file of `bytes` at `path`, whose space is taken now rather than missed at the end, where the file
  // system can.
  // Errors    already_exists      there is such a file, and it is not to be replaced
  //           capacity_exhausted  so many bytes do not fit
  //           invalid_argument    what is to be replaced is no regular file
  //           permission_denied, not_found, io_error
  static Result<TemporaryFile> create(const std::string& path, uint64_t bytes, bool replace);

  TemporaryFile(TemporaryFile&& other) noexcept;
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile();

  int fd() const { return fd_.get(); }

  // Makes it durable under its final name, in place of what was there. Errors as above.
  Status commit();

 private:
  TemporaryFile() = default;
  bool rename_to_target();

  UniqueFd fd_;
  std::string directory_;
  std::string path_;
  std::string target_;
  bool replace_ = true;
};

}  // namespace terrace
