// SPDX-License-Identifier: Apache-2.0
// A file's bytes for reading, where stores by mistake or on purpose stay in this process: pages are copied when they
// are stored to (MAP_PRIVATE). DAX devices have no such mappings; theirs are read-only.
//
// Place     core/os; libclient/model looks at models through it.
// Threads   One owner; bytes inside are ordinary memory. A file that is cut short, or a lease that is fenced, makes
//           accesses raise SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/base/result.h"

namespace terrace::os {

class FileView {
 public:
  FileView() = default;  // maps nothing
  FileView(FileView&& other) noexcept;
  FileView& operator=(FileView&& other) noexcept;
  FileView(const FileView&) = delete;
  FileView& operator=(const FileView&) = delete;
  ~FileView();

  // The first `bytes` bytes of `fd`, which need only be open for reading, and not stay open. `name` is for errors.
  // Errors    out_of_memory  no address space
  //           others         as os_error says
  static Result<FileView> map(int fd, uint64_t bytes, const std::string& name);

  std::span<std::byte> bytes() const { return {data_, static_cast<size_t>(bytes_)}; }
  // false: a store raises SIGSEGV.
  bool takes_stores() const { return takes_stores_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  bool takes_stores_ = true;
};

}  // namespace terrace::os
