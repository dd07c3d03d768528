// SPDX-License-Identifier: Apache-2.0
#include "daemon/machine_memory.h"

#include "core/base/clock.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

ObjectDirectoryOptions object_directory_options(const DaemonConfig& config) {
  ObjectDirectoryOptions options;
  options.directory = config.object_directory;
  options.runtime_directory = config.runtime_directory;
  for (const EmulatedDevice& device : config.emulated) options.bytes += device.size_bytes;
  options.mount = config.mount;
  options.huge_pages = config.huge_pages;
  return options;
}

NumaOptions numa_options(const DaemonConfig& config, MeasuredRecord* measured) {
  return {.runtime_directory = config.runtime_directory,
          .mount = config.mount,
          .huge_pages = config.huge_pages,
          .record = config.state_path + ".system-ram",
          .measured = measured};
}

}  // namespace

MachineMemory::MachineMemory(ObjectDirectory objects, const DaemonConfig& config)
    : object_path_(objects.path()),
      measured_(config.role == Role::manager ? std::make_unique<MeasuredRecord>(config.state_path + ".measured")
                                             : nullptr),
      emulated_(std::move(objects), EmulatedOptions{.devices = config.emulated,
                                                    .granule_bytes = config.granule_bytes,
                                                    .reserve = !config.overcommit,
                                                    .measured = measured_.get()}),
      pmem_kernel_(make_pmem_kernel()),
      cxl_kernel_(make_cxl_kernel()),
      pmem_(*pmem_kernel_, *cxl_kernel_, RegionRecords(config.state_path + "-regions.toml"),
            PmemOptions{.measured = measured_.get(),
                        .record_directory = config.runtime_directory + "/dax",
                        .boot_id = read_boot_id(),
                        .pins = &pins_}),
      hardware_(make_hardware({.runtime_directory = config.runtime_directory,
                               .boot_id = read_boot_id(),
                               .measured = measured_.get(),
                               .pins = &pins_})),
      numa_(numa_options(config, measured_.get()),
            config.hardware && hardware_usable() ? &hardware_->ram_kernel() : nullptr) {
  log::info("memory: {}", emulated_.describe_memory());
  backends_.add(emulated_);
  if (!config.hardware) return;
  // On further hosts only what two hosts can see at once and use side by side. The memory of a node is its
  // host's alone whatever the node's number, and labels of namespaces have one writer
  // (docs/operations/agents.md).
  if (config.role == Role::manager) {
    backends_.add(numa_);
    backends_.add(pmem_);
  }
  if (hardware_usable()) hardware_->add_to(backends_);
}

std::vector<std::string> MachineMemory::object_paths() const {
  std::vector<std::string> paths = numa_.object_directories();
  paths.push_back(object_path_);
  return paths;
}

void MachineMemory::remove_directories() {
  if (Status removed = emulated_.remove_directory(); !removed.ok())
    log::warn("the memory's directory stays: {}", removed.error().to_string());
  if (Status removed = numa_.remove_directories(); !removed.ok())
    log::warn("a memory node's directory stays: {}", removed.error().to_string());
}

Result<std::unique_ptr<MachineMemory>> MachineMemory::prepare(const DaemonConfig& config) {
  TERRACE_ASSIGN_OR_RETURN(ObjectDirectory objects, ObjectDirectory::prepare(object_directory_options(config)));
  return std::unique_ptr<MachineMemory>(new MachineMemory(std::move(objects), config));
}

}  // namespace terrace::daemon
