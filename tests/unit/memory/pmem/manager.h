// SPDX-License-Identifier: Apache-2.0
// A manager of a machine that is made up (fake_cxl_machine.h), for the tests of the pmem backend.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "daemon/memory/pmem/pmem.h"
#include "tests/unit/memory/pmem/fake_cxl_machine.h"

namespace terrace::test {

using namespace daemon;  // NOLINT: for tests of that namespace

constexpr uint64_t granule = 16 * mib;
inline const std::string serial = "pmem:0xc0";

// One memdev of 512 MiB with a manager, which can be started again on the same machine, or after a reboot.
class PmemManager {
 public:
  explicit PmemManager(uint64_t bytes = 512 * mib) : machine(bytes) {
    machine.add_memdev("0xc0");
    machine.add_window({{"0xc0"}});
    char name[] = "/tmp/t-pmem-XXXXXX";
    directory_ = ::mkdtemp(name);
    restart();
  }
  ~PmemManager() {
    for (const char* file : {"/state-regions.toml", "/state-regions.toml.new"})
      ::unlink((directory_ + file).c_str());
    ::rmdir(directory_.c_str());
  }
  PmemManager(const PmemManager&) = delete;
  PmemManager& operator=(const PmemManager&) = delete;

  void restart() {
    backend = std::make_unique<PmemBackend>(
        machine.pmem(), machine.cxl(), RegionRecords(directory_ + "/state-regions.toml"),
        PmemOptions{.look_ns = 0, .measured = measured, .record_directory = records, .boot_id = boot});
    backend->know_devices(known_);
    backend->know_objects(objects_);
    CHECK(backend->refresh().ok());
  }
  void compose() {
    const auto made = backend->create_region({{"0xc0"}, 0, 0});
    REQUIRE(made.ok());
    CHECK(*made == serial);
  }
  void adopt() {
    const auto seen = backend->discover();
    REQUIRE(seen.size() == 1);
    known_ = {{DeviceId{1}, serial, "pmem", seen[0].capacity_bytes, seen[0].granule_bytes}};
    backend->know_devices(known_);
    REQUIRE(backend->take_over(serial).ok());
  }
  // Also on record, as the rows would be.
  Status carve(const std::string& name, uint64_t bytes) {
    const Status status = backend->carve(name, bytes, extents(bytes));
    if (status.ok()) objects_.push_back({name, bytes, extents(bytes)});
    return status;
  }
  // Another store on the same machine, which has adopted these, and has no leases.
  void start_other_store(const std::vector<KnownDevice>& devices) {
    known_ = devices;
    objects_.clear();
    restart();
  }
  const std::vector<KnownDevice>& known() const { return known_; }
  void forget(const std::string& name) {
    std::erase_if(objects_, [&](const KnownObject& one) { return one.name == name; });
  }
  Status end(const std::string& name, uint64_t bytes) {
    forget(name);
    TERRACE_RETURN_IF_ERROR(backend->fence(name));
    TERRACE_RETURN_IF_ERROR(backend->erase(name, extents(bytes), 0, bytes));
    const auto scrubbed = backend->scrub(name);
    return scrubbed.ok() ? Status() : Status(scrubbed.error());
  }
  static std::vector<Extent> extents(uint64_t bytes) { return {{DeviceId{1}, 0, bytes / granule}}; }

  FakeCxlMachine machine;
  std::unique_ptr<PmemBackend> backend;
  // From the next restart() on.
  MeasuredRecord* measured = nullptr;
  std::string records = {}, boot = "boot-1";

 private:
  std::string directory_;
  std::vector<KnownDevice> known_;
  std::vector<KnownObject> objects_;
};

inline bool says(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}
uint64_t size_of(int fd);
bool zeros(int fd, uint64_t bytes);
void write_to(PmemBackend& backend, const std::string& name, const std::string& text);
std::string read_from(PmemBackend& backend, const std::string& name, size_t length);

}  // namespace terrace::test
