// SPDX-License-Identifier: Apache-2.0
// A running QEMU, asked over its monitor for programs (QMP), directly or through libvirt.
//
// Sources   QEMU's documentation: QMP specification; the commands' reference (object-add, device_add, qom-set,
//           query-memory-devices, query-pci).
// Threads   One at a time.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::cli {

class Monitor {
 public:
  virtual ~Monitor() = default;
  // What the machine returns to a command. Waits a minute at most.
  // Errors    io_error      the machine refused it, in its own words
  //           unavailable   the machine has ended, or does not answer
  virtual Result<nlohmann::json> ask(const std::string& command, const nlohmann::json& arguments) = 0;
  // Readable when the machine tells something or has ended; -1: there is none, and only ask() finds out.
  virtual int descriptor() const { return -1; }
  // Takes what the machine tells unasked. true: it has ended.
  virtual bool has_ended() = 0;
  // Between two looks at a machine that is changing.
  virtual int pause_ms() const { return 100; }
};

// At a UNIX socket that QEMU listens at (-qmp unix:PATH,server=on,wait=off), as soon as somebody answers there.
// Errors    unavailable   nobody does within `wait_ns`, or what answers is no QEMU
Result<std::unique_ptr<Monitor>> connect_monitor(const std::string& path, uint64_t wait_ns, const char* where);

// Of a domain of libvirt, by `virsh qemu-monitor-command`.
// Errors    not_found     there is no virsh
//           unavailable   no such domain, or it does not run; in virsh's words
Result<std::unique_ptr<Monitor>> libvirt_monitor(const std::string& connection, const std::string& domain,
                                                 const char* where);

// The answer to a command, as QMP writes it. Errors: io_error.
Result<nlohmann::json> answer_of(const nlohmann::json& document, const std::string& command);

}  // namespace terrace::cli
