// SPDX-License-Identifier: Apache-2.0
// Terrace's version. CMakeLists.txt (`project(... VERSION ...)`) is the one place where it is written.
#pragma once

namespace terrace {

// "0.2.0". Threads: any.
const char* version_number();

}  // namespace terrace
