// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop/hotplug.h"

#include "daemon/log/log.h"

namespace terrace::daemon {

Hotplug::Hotplug(UniqueFd socket, kj::UnixEventPort& port, kj::Timer& timer, Look look, HotplugOptions options,
                 Read read)
    : socket_(std::move(socket)),
      observer_(port, socket_.get(), kj::UnixEventPort::FdObserver::OBSERVE_READ),
      timer_(timer),
      look_(std::move(look)),
      options_(options),
      read_(std::move(read)),
      tasks_(*this) {
  tasks_.add(listen());
}

kj::Maybe<kj::Own<Hotplug>> Hotplug::listen_to_kernel(kj::UnixEventPort& port, kj::Timer& timer, Look look) {
  Result<UniqueFd> socket = inventory::open_uevent_socket();
  if (!socket.ok()) {
    log::info("hot-add and hot-remove are noticed within a second: {}", socket.error().to_string());
    return nullptr;
  }
  return kj::heap<Hotplug>(std::move(socket).value(), port, timer, std::move(look));
}

kj::Promise<void> Hotplug::listen() {
  return observer_.whenBecomesReadable().then([this]() {
    if (drain()) {
      if (looking_) {
        again_ = true;
      } else {
        looking_ = true;
        tasks_.add(look_after(options_.gather_ns));
      }
    }
    return listen();
  });
}

bool Hotplug::drain() {
  using Kind = inventory::ReadUevent::Kind;
  bool concerns = false;
  for (;;) {
    const inventory::ReadUevent read = read_(socket_.get());
    if (read.kind == Kind::none) return concerns;
    if (read.kind == Kind::lost) concerns = true;
    if (read.kind != Kind::event || !concerns_devices(read.event)) continue;
    concerns = true;
    if (worth_telling(read.event))
      log::info("{} {} {}", read.event.subsystem, read.event.device,
                read.event.action == "add" ? "appeared" : "went away");
  }
}

kj::Promise<void> Hotplug::look_after(uint64_t delay_ns) {
  return timer_.afterDelay(static_cast<int64_t>(delay_ns) * kj::NANOSECONDS)
      .then([this]() {
        again_ = false;
        return look_();
      })
      .then([this]() -> kj::Promise<void> {
        if (again_) return look_after(options_.pause_ns);
        looking_ = false;
        return kj::READY_NOW;
      });
}

void Hotplug::taskFailed(kj::Exception&& exception) {
  looking_ = false;
  log::warn("hotplug: {}; devices are looked at once a second all the same", exception.getDescription().cStr());
}

}  // namespace terrace::daemon
