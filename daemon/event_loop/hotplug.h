// SPDX-License-Identifier: Apache-2.0
// Hot-add and hot-remove: the kernel's uevents make the engine look at its devices at once instead of at the
// next second. Without the right to hear them nothing is lost but that second.
//
// Place     Beside the engine, built by daemon/role_manager.cc.
// Threads   The event loop's.
#pragma once

#include <kj/async-unix.h>
#include <kj/async.h>
#include <kj/timer.h>

#include <functional>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"
#include "daemon/inventory/uevent.h"

namespace terrace::daemon {

struct HotplugOptions {
  // Events come in flocks (a region brings its ports, decoders and dax devices): one look for all of them, this
  // long after the first.
  uint64_t gather_ns = 50 * ns_per_ms;
  // From the end of one look to the next.
  uint64_t pause_ns = 200 * ns_per_ms;
};

class Hotplug final : private kj::TaskSet::ErrorHandler {
 public:
  // `look` is called on the event loop; no second time before its promise is done.
  using Look = std::function<kj::Promise<void>()>;
  using Read = std::function<inventory::ReadUevent(int socket)>;
  // `socket`: as inventory::open_uevent_socket() gives it; a test brings another, and its own `read`.
  Hotplug(UniqueFd socket, kj::UnixEventPort& port, kj::Timer& timer, Look look, HotplugOptions options = {},
          Read read = inventory::read_uevent);
  // Null, with a line in the log, where the kernel does not tell: then devices are looked at once a second
  // only.
  static kj::Maybe<kj::Own<Hotplug>> listen_to_kernel(kj::UnixEventPort& port, kj::Timer& timer, Look look);

 private:
  kj::Promise<void> listen();
  bool drain();  // whether anything that was read concerns devices
  kj::Promise<void> look_after(uint64_t delay_ns);
  void taskFailed(kj::Exception&& exception) override;

  UniqueFd socket_;
  kj::UnixEventPort::FdObserver observer_;
  kj::Timer& timer_;
  const Look look_;
  const HotplugOptions options_;
  const Read read_;
  bool looking_ = false;  // or about to
  bool again_ = false;    // something came while a look was under way
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
