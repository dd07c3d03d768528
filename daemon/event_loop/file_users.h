// SPDX-License-Identifier: Apache-2.0
// Which files other processes have mapped or open, by what the kernel calls the file: of any kind of memory, and
// under whatever name.
//
// Threads   Any; reads /proc. Processes come and go meanwhile: what is told was true a moment ago.
#pragma once

#include <sys/types.h>

#include <set>
#include <utility>

#include "core/base/result.h"

namespace terrace::daemon {

using FileId = std::pair<dev_t, ino_t>;

// Errors    os_error   of fstat
Result<FileId> file_id(int fd);

// Those of `files` that a process other than this one has. A process that this one may not look into counts as
// having none.
// Errors    as read_names() and read_content() (daemon/memory/proc_files.h)
Result<std::set<FileId>> files_in_use(const std::set<FileId>& files);

}  // namespace terrace::daemon
