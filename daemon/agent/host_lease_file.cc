// SPDX-License-Identifier: Apache-2.0
#include "daemon/agent/host_lease_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/base/unique_fd.h"

namespace terrace::daemon {
namespace {

struct Page {
  char magic[8];
  char boot_id[56];
  uint64_t fence_at_ns;  // on another cache line than what never changes
  uint64_t guard_busy;
  uint64_t stop_at_ns;
  // The agent's alone. Zeros in files of before; `store_known` is written last.
  uint64_t store_high;
  uint64_t store_low;
  uint64_t store_known;
};
static_assert(offsetof(Page, fence_at_ns) == 64 && sizeof(Page) == 112);

constexpr char magic[8] = {'T', 'R', 'C', 'H', 'L', 'S', 'E', '2'};
constexpr size_t page_bytes = 4096;

}  // namespace

std::atomic_ref<uint64_t> HostLeaseFile::word() const {
  return std::atomic_ref<uint64_t>(static_cast<Page*>(page_)->fence_at_ns);
}

std::atomic_ref<uint64_t> HostLeaseFile::busy() const {
  return std::atomic_ref<uint64_t>(static_cast<Page*>(page_)->guard_busy);
}

std::atomic_ref<uint64_t> HostLeaseFile::stop() const {
  return std::atomic_ref<uint64_t>(static_cast<Page*>(page_)->stop_at_ns);
}

StoreId HostLeaseFile::store() const {
  const auto* page = static_cast<const Page*>(page_);
  return page->store_known == 1 ? StoreId{page->store_high, page->store_low} : StoreId{};
}

Status HostLeaseFile::set_store(const StoreId& store) {
  auto* page = static_cast<Page*>(page_);
  if (this->store() == store) return {};
  // A process that ends between these leaves no store, never half of one.
  std::atomic_ref<uint64_t>(page->store_known).store(0);
  page->store_high = store.high;
  page->store_low = store.low;
  std::atomic_ref<uint64_t>(page->store_known).store(store.valid() ? 1 : 0);
  if (::msync(page_, page_bytes, MS_SYNC) != 0)
    return os_error(errno, "HostLeaseFile", "cannot write down which store this host obeys");
  return {};
}

Result<HostLeaseFile> HostLeaseFile::open(const std::string& path) {
  constexpr const char* where = "HostLeaseFile";
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return os_error(errno, where, "cannot open " + path);
  if (::flock(file.get(), LOCK_EX) != 0) return os_error(errno, where, "cannot lock " + path);
  if (::ftruncate(file.get(), page_bytes) != 0) return os_error(errno, where, "cannot make " + path);
  void* mapped = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return os_error(errno, where, "cannot map " + path);
  auto* page = static_cast<Page*>(mapped);
  char boot[sizeof(page->boot_id)] = {};
  const std::string boot_id = read_boot_id();
  std::memcpy(boot, boot_id.data(), std::min(boot_id.size(), sizeof(boot) - 1));
  const bool ours = std::memcmp(page->magic, magic, sizeof(magic)) == 0;
  if (!ours) page->store_known = 0;
  if (!ours || std::memcmp(page->boot_id, boot, sizeof(boot)) != 0) {
    page->fence_at_ns = 0;
    page->guard_busy = 0;
    page->stop_at_ns = 0;
    std::memcpy(page->boot_id, boot, sizeof(boot));
    std::memcpy(page->magic, magic, sizeof(magic));
  }
  ::flock(file.get(), LOCK_UN);  // the mapping keeps the open file, and with it the lock, alive
  return HostLeaseFile(mapped);
}

HostLeaseFile::HostLeaseFile(HostLeaseFile&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}

HostLeaseFile::~HostLeaseFile() {
  if (page_ != nullptr) ::munmap(page_, page_bytes);
}

}  // namespace terrace::daemon
