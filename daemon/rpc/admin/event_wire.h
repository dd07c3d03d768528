// SPDX-License-Identifier: Apache-2.0
// Events as messages of the schema.
//
// Threads   Pure functions.
#pragma once

#include <string_view>

#include "core/base/result.h"
#include "core/schema/terrace.capnp.h"
#include "daemon/events/event_ring.h"

namespace terrace::daemon {

void write_event(rpc::Event::Builder out, const Event& event, std::string_view run);

// Errors    invalid_argument   no kind begins with that word
Result<EventFilter> read_event_query(rpc::EventQuery::Reader query);

}  // namespace terrace::daemon
