// SPDX-License-Identifier: Apache-2.0
// Made-up traces: patterns that no policy was tuned to, and a stand-in for the conversation trace on machines
// without it.
#pragma once

#include <string_view>
#include <vector>

#include "tiering/sim/trace.h"

namespace terrace::tiering {

struct GeneratorEntry {
  std::string_view name;
  std::string_view what;  // one line, for help texts
};

// uniform, zipf, scan-loop, phases, shift, conversation.
std::vector<GeneratorEntry> generators();

// `scale`: 1 is about 200'000 uses of 20'000 objects in an hour; the same seed gives the same trace.
// Errors    invalid_argument  no such generator, or a scale out of (0, 100]
Result<Trace> generate_trace(std::string_view name, double scale = 1, uint64_t seed = 1);

}  // namespace terrace::tiering
