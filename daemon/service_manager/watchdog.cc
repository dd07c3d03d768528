// SPDX-License-Identifier: Apache-2.0
#include "daemon/service_manager/watchdog.h"

#include <memory>
#include <utility>

namespace terrace::daemon {
namespace {

kj::Promise<void> tell_again(const ServiceManager& manager, kj::Timer& timer,
                             std::shared_ptr<const std::function<std::string()>> status) {
  manager.alive((*status)());
  return timer.afterDelay(static_cast<int64_t>(manager.watchdog_ns() / 2) * kj::NANOSECONDS)
      .then([&manager, &timer, status = std::move(status)]() mutable {
        return tell_again(manager, timer, std::move(status));
      });
}

}  // namespace

kj::Promise<void> tell_watchdog(const ServiceManager& manager, kj::Timer& timer,
                                std::function<std::string()> status) {
  if (manager.watchdog_ns() == 0) return kj::READY_NOW;
  return tell_again(manager, timer, std::make_shared<const std::function<std::string()>>(std::move(status)));
}

}  // namespace terrace::daemon
