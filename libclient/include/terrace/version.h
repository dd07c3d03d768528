// SPDX-License-Identifier: Apache-2.0
// The version of libterrace that a program runs with. The package's version is the one of its headers.
#pragma once

namespace terrace {

// "0.2.0". Threads: any.
const char* library_version();

}  // namespace terrace
