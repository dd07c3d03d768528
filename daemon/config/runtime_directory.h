// SPDX-License-Identifier: Apache-2.0
// The runtime directory: where the socket lies. Everybody may look into it, nobody else may have prepared it.
#pragma once

#include <string>

#include "core/base/result.h"

namespace terrace::daemon {

// Makes `path` (absolute) and its missing parents: 0755 for root, whose clients are other users; 0700 for
// others. One that exists is used as it is when it is safe.
// Errors    permission_denied  it, or a folder above it up to the first one of root's, is another user's or can
//                              be written by others: they could put their own socket in its place. Names the
//                              folder
//           invalid_argument   not absolute, or something else than a directory is in the way
Status prepare_runtime_directory(const std::string& path);

}  // namespace terrace::daemon
