// SPDX-License-Identifier: Apache-2.0
// The kernel's uevents, read from netlink: hardware was added or removed.
//
// Place     daemon/inventory; daemon/event_loop/hotplug.h listens with it.
// Threads   Plain functions; the socket is its owner's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::inventory {

struct Uevent {
  std::string action;     // "add", "remove", "change", "bind", "online", ...
  std::string subsystem;  // "cxl", "dax", ...
  std::string device;     // "mem0", "dax0.1"
  std::string path = {};  // of the device, below /sys

  bool operator==(const Uevent&) const = default;
};

// One message as the kernel sends it: "add@/devices/...\0ACTION=add\0SUBSYSTEM=cxl\0...". Nothing for what is
// not such a message (udev's own begin with "libudev").
std::optional<Uevent> parse_uevent(std::string_view message);

// Whether devices of a pool may look different after it. What a lease makes and ends is left out (dax devices
// but the first of a region, namespaces): each grant would have all devices looked at.
bool concerns_devices(const Uevent& event);
// Whether it is worth a line in the log: hardware and regions, not every dax device of a lease.
bool worth_telling(const Uevent& event);

// A non-blocking socket that gets the kernel's events. Needs no privilege; in a network namespace of its own it
// stays silent.
// Errors    as os_error
Result<UniqueFd> open_uevent_socket();

struct ReadUevent {
  enum class Kind { none, lost, other, event } kind = Kind::none;  // lost: some were dropped, look for yourself
  Uevent event = {};
};
// The next one, without waiting. What others than the kernel sent is `other`.
ReadUevent read_uevent(int socket);

}  // namespace terrace::inventory
