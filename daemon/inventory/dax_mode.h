// SPDX-License-Identifier: Apache-2.0
// Gives a dax device that the kernel took as memory (system-ram) back to those who map it (devdax). The one
// thing in this folder that changes hardware; `terrace doctor --fix` does it when an operator asked for it.
//
//   take every memory block offline -> unbind kmem -> bind device_dax -> look
//
// Cut off anywhere it can be done again. What cannot be taken offline is left online.
//
// Threads   One at a time per device.
#pragma once

#include <string>

#include "core/base/result.h"

namespace terrace::inventory {

class DaxModes {
 public:
  virtual ~DaxModes() = default;
  // `device`: "dax0.1". Returns when it is in devdax mode again, which was looked at.
  // Errors    not_found          no such dax device
  //           permission_denied  not root
  //           busy               pages on it cannot go elsewhere; all of it is online as before
  //           io_error           a step failed; says which
  virtual Status to_devdax(const std::string& device) = 0;
};

// Through libdaxctl.
class KernelDaxModes final : public DaxModes {
 public:
  Status to_devdax(const std::string& device) override;
};

}  // namespace terrace::inventory
