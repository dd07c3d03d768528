// SPDX-License-Identifier: Apache-2.0
// The files of the console (daemon/web/console), which the build makes and puts into the program.
#pragma once

#include <cstdint>
#include <span>

namespace terrace::daemon {

struct ConsoleFile {
  const char* path;  // behind "/console/"; of the page itself: empty
  const char* type;
  const char* etag;  // quoted, as HTTP has it
  std::span<const uint8_t> plain, gzip;
};

// None: the program was built without it.
std::span<const ConsoleFile> console_files();

}  // namespace terrace::daemon
