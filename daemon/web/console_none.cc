// SPDX-License-Identifier: Apache-2.0
// Instead of the console's files, in a build without esbuild.
#include "daemon/web/console_files.h"

namespace terrace::daemon {

std::span<const ConsoleFile> console_files() {
  return {};
}

}  // namespace terrace::daemon
