// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/devdax/kept_pages.h"

namespace terrace::daemon {
namespace {

std::vector<PageRange> pages_of(const std::vector<DaxRange>& ranges) {
  std::vector<PageRange> pages;
  for (const DaxRange& range : ranges) pages.push_back({range.start, range.bytes});
  return pages;
}

Error still_held(std::string detail) {
  return Error{.code = ErrorCode::busy, .where = "KeptPages", .detail = std::move(detail)};
}

}  // namespace

std::string KeptPages::in_words(const std::string& serial) const {
  constexpr const char* trust = "; for tenants who trust each other: ";
  if (pins_ == nullptr) return {};
  const Status sight = pins_->usable();
  if (!sight.ok()) return trust + sight.error().detail;
  if (record_.idle_count(serial).has_value())
    return "; pages pinned beyond a fence are counted, and kept until they end";
  const MutexLock lock(mutex_);
  for (const auto* reasons : {&not_learned_, &not_yet_})
    if (const auto why = reasons->find(serial); why != reasons->end()) return trust + why->second;
  return {};
}

Fence KeptPages::fence(const std::string& serial) const {
  if (pins_ == nullptr || !pins_->usable().ok()) return Fence::trusting;
  const MutexLock lock(mutex_);
  return not_learned_.contains(serial) || not_yet_.contains(serial) ? Fence::trusting : Fence::verified;
}

bool KeptPages::to_learn(const std::string& serial) const {
  if (pins_ == nullptr || record_.idle_count(serial).has_value() || !pins_->usable().ok()) return false;
  const MutexLock lock(mutex_);
  return !not_learned_.contains(serial);
}

void KeptPages::learn(const std::string& serial, std::span<std::byte> memory, DaxRange range,
                      uint64_t block_bytes, const std::function<Status()>& take_away) {
  const PageRange pages{range.start, range.bytes};
  Status learned;
  if (const auto block = pins_->learn(memory, pages, block_bytes); block.ok()) {
    const auto left = pins_->during({pages}, *block, take_away);
    if (left.ok()) record_.set_idle_count(serial, block->idle);
    if (!left.ok()) learned = left.error();
  } else {
    learned = block.error();
  }
  const MutexLock lock(mutex_);
  not_yet_.erase(serial);
  if (!learned.ok()) not_learned_[serial] = learned.error().detail;
}

void KeptPages::cannot_learn_yet(const std::string& serial, const std::string& why) {
  const MutexLock lock(mutex_);
  not_yet_[serial] = why;
}

std::optional<PageBlock> KeptPages::block_of(const std::string& serial, uint64_t block_bytes) const {
  if (pins_ == nullptr || block_bytes == 0 || !pins_->usable().ok()) return std::nullopt;
  const auto idle = record_.idle_count(serial);
  return idle.has_value() ? std::optional(PageBlock{block_bytes, *idle}) : std::nullopt;
}

Result<std::optional<int64_t>> KeptPages::take_away(const std::string& serial,
                                                    const std::vector<DaxRange>& ranges, uint64_t block_bytes,
                                                    const std::function<Status()>& take_away) {
  const auto block = block_of(serial, block_bytes);
  if (!block.has_value()) {
    TERRACE_RETURN_IF_ERROR(take_away());
    return std::optional<int64_t>();
  }
  // A manager that is killed in between does not know what was left: then it is kept. Where that cannot be written
  // down the fence goes on: it cannot wait.
  (void)record_.keep(serial, {ranges, std::nullopt});
  Status taken;
  const auto count = pins_->during(pages_of(ranges), *block, [&] { return taken = take_away(); });
  if (!taken.ok() || (count.ok() && count->none())) {  // as it was, gone as a whole, or nobody's
    record_.let_go(serial, ranges);
    if (!taken.ok()) return taken.error();
    return std::optional<int64_t>();
  }
  if (!count.ok() || count->pins <= 0) return std::optional<int64_t>();  // kept: nobody knows what was left
  return std::optional(count->pins);
}

Status KeptPages::look(const std::string& serial, const KeptMemory& memory, uint64_t block_bytes) const {
  if (memory.pins == 0) return {};
  const auto block = block_of(serial, block_bytes);
  if (!memory.pins.has_value() || !block.has_value()) {
    return still_held(
        "pages of this memory may still be held by who had it before, and nobody counted them to the end (the "
        "manager was killed, or its device was removed from outside): it is kept until the machine is "
        "restarted");
  }
  TERRACE_ASSIGN_OR_RETURN(const PinCount ended, pins_->look(pages_of(memory.ranges), *block));
  const int64_t left = *memory.pins + ended.pins;
  if (left == 0) return {};
  return still_held(
      std::to_string(left) + " of " + std::to_string(*memory.pins) +
      " pages of this memory that were pinned at its fence are still held by the process that had it, or "
      "by whom it gave them to: kept until they are let go. `terrace fsck` names who has it; end that "
      "process");
}

}  // namespace terrace::daemon
