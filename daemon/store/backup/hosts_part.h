// SPDX-License-Identifier: Apache-2.0
// The names of further hosts, `<state>.hosts`, as a part of a backup: whole pages behind those of the database, of which
// SQLite knows nothing. The text is not understood here (daemon/hosts/hosts_file.h).
//
//   text · zeros · the last 32 bytes: "terrace-hosts-1" and a zero · u64 bytes of text · u32 zero · u32 crc32c
//
// Little endian; the crc is over all of the part before it. A backup without the part is one of before, or of a manager
// that never had a further host.
//
// Threads   Any; a file belongs to one caller.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/result.h"

namespace terrace::daemon {

// The file beside a store.
std::string hosts_path(const std::string& state_path);

struct HostsPart {
  std::optional<std::string> text;  // nullopt: there is none
  uint64_t bytes = 0;               // of the part
};

// Appends what lies beside `state_path` to the finished backup at `path`, synced; nothing where there is no file.
// Errors    capacity_exhausted, io_error; corrupt: the file is too large to be one
Status append_hosts(const std::string& path, const std::string& state_path);

// Errors    corrupt   there is something behind the database that is no such part, or is damaged
Result<HostsPart> read_hosts(const std::string& path);

// Takes the part off a private copy, so that the file is the database alone.
Result<HostsPart> take_hosts(const std::string& path);

}  // namespace terrace::daemon
