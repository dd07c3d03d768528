// SPDX-License-Identifier: Apache-2.0
// All kinds of memory that this machine has, prepared and combined: a manager leases from it, and an agent
// carves leases from it.
//
// Place     role_manager.cc and role_agent.cc each build one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/config/config.h"
#include "daemon/memory/files/emulated.h"
#include "daemon/memory/machine/backend_set.h"
#include "daemon/memory/machine/hardware.h"
#include "daemon/memory/numa/numa.h"
#include "daemon/memory/pins/kernel_pins.h"
#include "daemon/memory/pmem/pmem.h"

namespace terrace::daemon {

class MachineMemory {
 public:
  // Mounts what has to be mounted. Before any thread is started.
  static Result<std::unique_ptr<MachineMemory>> prepare(const DaemonConfig& config);

  BackendSet& backends() { return backends_; }
  const std::string& object_path() const { return object_path_; }
  // Where object files may lie now, of all kinds of memory that have them.
  std::vector<std::string> object_paths() const;
  // Whether files that are no objects may have memory where emulated devices lie: a mount that is as large as its
  // objects has none for others (0032). 0: none any more.
  void allow_beside(uint64_t bytes) { emulated_.allow_beside(bytes); }
  // At the end of a daemon without leases.
  void remove_directories();

 private:
  MachineMemory(ObjectDirectory objects, const DaemonConfig& config);

  const std::string object_path_;
  const std::unique_ptr<MeasuredRecord> measured_;  // of all kinds, hence before them; none of an agent
  EmulatedBackend emulated_;
  KernelPins pins_;
  const std::unique_ptr<PmemKernel> pmem_kernel_;
  const std::unique_ptr<CxlKernel> cxl_kernel_;
  PmemBackend pmem_;
  const std::unique_ptr<Hardware> hardware_;
  NumaBackend numa_;
  BackendSet backends_;
};

}  // namespace terrace::daemon
