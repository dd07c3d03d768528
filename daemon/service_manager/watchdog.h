// SPDX-License-Identifier: Apache-2.0
// Tells a watchdog that the event loop lives.
#pragma once

#include <kj/async.h>
#include <kj/timer.h>

#include <functional>
#include <string>

#include "daemon/service_manager/service_manager.h"

namespace terrace::daemon {

// At half of the watchdog's time, with `status` as it is then, for as long as the promise is kept; never, where there is no
// watchdog. It is a timer of the event loop: a loop that hangs says nothing, and the service manager ends the process.
// Threads   The event loop's thread only.
kj::Promise<void> tell_watchdog(const ServiceManager& manager, kj::Timer& timer,
                                std::function<std::string()> status);

}  // namespace terrace::daemon
