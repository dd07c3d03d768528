// SPDX-License-Identifier: Apache-2.0
// The same question to the protocol on emulated hosts without coherent caches (tests/coherence/kv_world.h).
#pragma once

#include <cstdint>

namespace terrace::kv_soak {

// World after world until so many blocks were read and compared. Prints a line of JSON, with `progress` one each second.
// 0: nothing was wrong.
int run_emulated(uint64_t reads, uint64_t seed, bool plant, bool progress);

}  // namespace terrace::kv_soak
