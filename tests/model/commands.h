// SPDX-License-Identifier: Apache-2.0
// Random commands: mostly sensible ones, now and then impossible ones, over few names so that they collide.
#pragma once

#include "core/base/prng.h"
#include "tests/model/reference.h"

namespace terrace::model {

daemon::Command random_command(Prng& prng, const Reference& reference, uint64_t now_ns);

// For messages: "Grant", "Tick"...
const char* command_name(const daemon::Command& command);

}  // namespace terrace::model
