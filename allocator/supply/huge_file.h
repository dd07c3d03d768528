// SPDX-License-Identifier: Apache-2.0
// A memory file in huge pages, on a private mount without a path.
#pragma once

#include <cstdint>

#include "core/base/unique_fd.h"

namespace terrace::supply {

// Sparse, of `bytes`. Invalid: this process may not mount (it takes CAP_SYS_ADMIN), or the kernel has no huge
// pages for tmpfs. Any thread.
UniqueFd make_huge_file(uint64_t bytes);

}  // namespace terrace::supply
