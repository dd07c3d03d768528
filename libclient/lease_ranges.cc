#include "libclient/lease_ranges.h"

#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "terrace/mapping.h"

namespace terrace {
namespace {

struct Ranges {
  struct Range {
    size_t bytes = 0;
    std::weak_ptr<Lease> lease;
  };
  std::mutex mutex;
  std::map<const std::byte*, Range> by_first;
};

// Never destroyed: mappings of static objects end after it would have been.
Ranges& ranges() {
  static Ranges* const all = new Ranges;
  return *all;
}

}  // namespace

void note_lease_range(std::span<const std::byte> range, std::weak_ptr<Lease> lease) {
  const std::lock_guard lock(ranges().mutex);
  ranges().by_first.insert_or_assign(range.data(), Ranges::Range{range.size(), std::move(lease)});
}

void forget_lease_range(const std::byte* first) {
  const std::lock_guard lock(ranges().mutex);
  ranges().by_first.erase(first);
}

std::shared_ptr<Lease> lease_of_memory(std::span<const std::byte> memory) {
  if (memory.empty()) return nullptr;
  const std::lock_guard lock(ranges().mutex);
  const auto behind = ranges().by_first.upper_bound(memory.data());
  if (behind == ranges().by_first.begin()) return nullptr;
  const auto& [first, range] = *std::prev(behind);
  if (static_cast<size_t>(memory.data() - first) >= range.bytes) return nullptr;
  return range.lease.lock();
}

}  // namespace terrace
