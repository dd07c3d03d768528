// SPDX-License-Identifier: Apache-2.0
// A plan in words, for a terminal.
//
// Place     daemon/plan/sizing.h -> here -> cli/tools/plan.cc.
#pragma once

#include <string>

#include "daemon/plan/sizing.h"
#include "daemon/plan/trace.h"

namespace terrace::cli {

// What was assumed, the table, why requests were rejected, one sentence that concludes.
std::string plan_text(const plan::Plan& plan, const plan::Trace& trace);

}  // namespace terrace::cli
