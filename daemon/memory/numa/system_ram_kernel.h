// SPDX-License-Identifier: Apache-2.0
// RamKernel on this machine: dax regions and drivers through DaxBus, memory blocks and the kmem driver through
// libdaxctl, which loads that driver where it is not.
//
// Threads   As RamKernel; each call builds its own library context, since one never notices what changed.
#pragma once

#include "daemon/memory/devdax/dax_bus.h"
#include "daemon/memory/numa/system_ram.h"

namespace terrace::daemon {

class DaxctlRamKernel final : public RamKernel {
 public:
  // `bus` outlives this.
  explicit DaxctlRamKernel(DaxBus& bus) : bus_(bus) {}

  Result<std::vector<RamRegion>> regions() override;
  Status fill(const RamRegion& region) override;
  Status disable(const std::string& device) override;
  Status enable_devdax(const std::string& device) override;
  Status enable_ram(const std::string& device) override;
  Status online_movable(const std::string& device) override;
  Status offline(const std::string& device) override;
  bool has_cpus(int node) override;
  std::string auto_online() override;
  Result<std::string> holders(const std::string& device) override;
  std::string users(int node) override;

 private:
  DaxBus& bus_;
};

// Which processes have most of a node's memory, from /proc/*/numa_maps below `root`: "vllm[12] 1.5 GiB, ...".
std::string node_users(int node, const std::string& root = "");

}  // namespace terrace::daemon
