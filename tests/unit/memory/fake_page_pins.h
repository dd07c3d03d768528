// SPDX-License-Identifier: Apache-2.0
// A PagePins as the kernel was measured to be (daemon/memory/pins/page_pins.h): pins are references to pages, and the
// pages end with their device. A pin older than its page takes a reference from the page that is there now.
//
// Threads   One.
#pragma once

#include <map>

#include "daemon/memory/pins/page_pins.h"

namespace terrace::test {

class FakePagePins final : public daemon::PagePins {
 public:
  Status usable() override {
    if (blind) return Error{.code = ErrorCode::unsupported, .where = "FakePagePins", .detail = "planted"};
    return {};
  }
  Result<daemon::PageBlock> learn(std::span<std::byte>, daemon::PageRange, uint64_t bytes) override {
    ++learned;
    if (unlearnable) return Error{.code = ErrorCode::unsupported, .where = "FakePagePins", .detail = "planted"};
    return daemon::PageBlock{bytes, 1};
  }
  Result<daemon::PinCount> look(const std::vector<daemon::PageRange>& ranges, daemon::PageBlock) override {
    return count(ranges);
  }
  Result<daemon::PinCount> during(const std::vector<daemon::PageRange>& ranges, daemon::PageBlock,
                                  const std::function<Status()>& take_away) override {
    TERRACE_RETURN_IF_ERROR(take_away());
    const daemon::PinCount left = count(ranges);
    for (auto& [page, pins] : pages_)
      if (within(page, ranges)) pins = 0;  // pages of another device from here on
    if (uncounted) return Error{.code = ErrorCode::io_error, .where = "FakePagePins", .detail = "planted"};
    return left;
  }

  void pin(uint64_t address) { ++pages_[address]; }
  void unpin(uint64_t address) { --pages_[address]; }
  void renew() { pages_.clear(); }  // the devices over all pages went, uncounted

  bool blind = false;        // no pins can be seen here
  bool uncounted = false;    // an unbinding is not counted
  bool unlearnable = false;  // a mapping counts as a pin, say
  int learned = 0;

 private:
  static bool within(uint64_t page, const std::vector<daemon::PageRange>& ranges) {
    for (const daemon::PageRange& range : ranges)
      if (page >= range.start && page - range.start < range.bytes) return true;
    return false;
  }
  daemon::PinCount count(const std::vector<daemon::PageRange>& ranges) const {
    daemon::PinCount found;
    for (const auto& [page, pins] : pages_) {
      if (pins == 0 || !within(page, ranges)) continue;
      ++found.blocks;
      found.pins += pins;
    }
    return found;
  }

  std::map<uint64_t, int64_t> pages_;
};

}  // namespace terrace::test
