// SPDX-License-Identifier: Apache-2.0
// The backends of real memory that this machine can have, built and owned together: for the daemon and for its
// offline check, which must see the same.
//
// Threads   Built before any; the backends as they say.
#pragma once

#include <memory>
#include <string>

#include "daemon/memory/machine/backend_set.h"
#include "daemon/memory/measured_record.h"
#include "daemon/memory/numa/system_ram.h"
#include "daemon/memory/pins/page_pins.h"

namespace terrace::daemon {

struct HardwareOptions {
  std::string runtime_directory;  // what the backends remember for one boot goes below it
  std::string boot_id;
  bool read_only = false;  // they only look
  // As DevdaxOptions::measured. None on a further host, where memory that is taken over may be leased to
  // another by then.
  MeasuredRecord* measured = nullptr;
  PagePins* pins = nullptr;  // as DevdaxOptions::pins
};

class Hardware {
 public:
  virtual ~Hardware() = default;
  virtual void add_to(BackendSet& set) = 0;
  // What gives dax memory to the kernel and takes it back, for the numa backend.
  virtual RamKernel& ram_kernel() = 0;
};

// Whether this process could use real memory at all. A bus whose driver is loaded later is seen then.
bool hardware_usable();

std::unique_ptr<Hardware> make_hardware(const HardwareOptions& options);

}  // namespace terrace::daemon
