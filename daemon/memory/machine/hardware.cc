// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/machine/hardware.h"

#include <unistd.h>

#include "daemon/memory/devdax/dax_sysfs.h"
#include "daemon/memory/devdax/devdax.h"
#include "daemon/memory/numa/system_ram_kernel.h"

namespace terrace::daemon {
namespace {

DevdaxOptions devdax_options(const HardwareOptions& options) {
  return {.record_directory = options.runtime_directory + "/dax",
          .boot_id = options.boot_id,
          .read_only = options.read_only,
          .measured = options.measured,
          .pins = options.pins};
}

class MachineHardware final : public Hardware {
 public:
  explicit MachineHardware(const HardwareOptions& options) : devdax_(dax_bus_, devdax_options(options)) {}

  void add_to(BackendSet& set) override { set.add(devdax_); }
  RamKernel& ram_kernel() override { return ram_kernel_; }

 private:
  SysfsDaxBus dax_bus_;
  DaxctlRamKernel ram_kernel_{dax_bus_};
  DevdaxBackend devdax_;
};

}  // namespace

bool hardware_usable() {
  return ::geteuid() == 0;
}

std::unique_ptr<Hardware> make_hardware(const HardwareOptions& options) {
  return std::make_unique<MachineHardware>(options);
}

}  // namespace terrace::daemon
