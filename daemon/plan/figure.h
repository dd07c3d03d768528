// SPDX-License-Identifier: Apache-2.0
// The plan as one picture: saving and rejections by pool size; use, stranded memory and fragmentation over
// time.
//
// Place     sizing.h -> here; svg.h draws. Pure.
#pragma once

#include <string>

#include "daemon/plan/sizing.h"
#include "daemon/plan/trace.h"

namespace terrace::plan {

// A whole SVG document. `trace_name` stands in its title.
std::string figure(const Plan& plan, const Trace& trace, const std::string& trace_name);

}  // namespace terrace::plan
