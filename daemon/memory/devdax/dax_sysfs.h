// SPDX-License-Identifier: Apache-2.0
// DaxBus on this machine: /sys/bus/dax, /dev/daxX.Y and, for the users of a device, /proc.
//
// Threads   As DaxBus; it keeps nothing but its root and a lock for what the kernel does not let run side by side.
#pragma once

#include "core/base/sync/mutex.h"
#include "daemon/memory/devdax/dax_bus.h"

namespace terrace::daemon {

class SysfsDaxBus final : public DaxBus {
 public:
  // `root` is put before /sys, /dev and /proc; tests read a made-up one.
  explicit SysfsDaxBus(std::string root = "") : root_(std::move(root)) {}

  // Whether this kernel has the bus at all.
  bool present() const;

  Result<std::vector<DaxRegion>> regions() override;
  Result<DaxDevice> device(const std::string& name) override;
  Result<std::string> create(const DaxRegion& region) override;
  Status set_align(const std::string& name, uint64_t align_bytes) override;
  Status add_range(const std::string& name, DaxRange range) override;
  Status release_ranges(const std::string& name) override;
  Status enable(const std::string& name) override;
  Status disable(const std::string& name) override;
  Status destroy(const DaxRegion& region, const std::string& name) override;
  Result<UniqueFd> open(const DaxDevice& device, bool writable) override;
  Result<std::unique_ptr<DaxMemory>> map(const DaxDevice& device) override;
  Result<std::vector<DaxHolder>> holders(const std::vector<DaxDevice>& devices) override;

 private:
  class Reader;
  std::string device_path(const std::string& name) const;
  Status write(const std::string& path, const std::string& text, const std::string& what) const;
  Result<DaxDevice> read_device(Reader& reader, const std::string& name) const;
  bool read_region(Reader& reader, const std::string& path, DaxRegion& region) const;
  std::string serial_of(Reader& reader, const DaxRegion& region) const;
  uint64_t start_of(Reader& reader, const DaxRegion& region, uint64_t available_bytes) const;

  std::string root_;
  // Whoever reads a file of a device's mapping while the kernel (6.1) removes that mapping waits for the writer, and the
  // writer for him, for ever: readers of mappings and those who take them away exclude each other.
  SharedMutex mappings_;
};

}  // namespace terrace::daemon
