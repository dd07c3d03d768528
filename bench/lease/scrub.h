// SPDX-License-Identifier: Apache-2.0
// The speed of erasing memory, over a plain memset of the same size in the same run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace terrace::bench {

// scrub_gib_per_s(_over_memset): core/os/erase, as backends use it whose memory stays in place: zeroed past the
// caches and a sample read back. scrub_tmpfs_gib_per_s(_over_memset): a whole lease of the emulated pool, every
// byte of it written before, from its release until its extents are free again.
void measure_scrub(bool smoke, const std::string& memory_directory, nlohmann::json& figures);

}  // namespace terrace::bench
