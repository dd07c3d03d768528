// SPDX-License-Identifier: Apache-2.0
// Tier pages made by hand: what an engine would write, and what no engine would. For tests of `terrace tier`.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "core/base/check.h"
#include "core/layout/tier_page.h"

namespace terrace::test {

// Of /proc/<pid>/stat and comm: what an engine of that process writes into its page.
inline uint64_t start_ticks_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const char* at = std::strrchr(text.c_str(), ')');
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  return at == nullptr ? 0 : std::strtoull(at, nullptr, 10);
}
inline std::string name_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

// A page of `prefix`<uid>/<pid>, with room for all cells. Removes its file when it goes; the directory stays.
class TierPageMaker {
 public:
  explicit TierPageMaker(const std::string& prefix, int pid = ::getpid())
      : directory(prefix + std::to_string(::geteuid())), path(directory + "/" + std::to_string(pid)) {
    ::mkdir(directory.c_str(), 0700);
    ::unlink(path.c_str());
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    TERRACE_CHECK(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(file_bytes)) == 0, "a file for the page");
    void* at = ::mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    TERRACE_CHECK(at != MAP_FAILED, "the page can be mapped");
    page = static_cast<layout::TierPage*>(at);
    page->version = layout::tier_page_version;
    page->range_count = layout::tier_ranges_max;
    page->file_bytes = file_bytes;
    page->pid = static_cast<uint32_t>(pid);
    page->start_ticks = start_ticks_of(pid);
    std::snprintf(page->program, sizeof page->program, "%s", name_of(pid).c_str());
    page->magic = layout::tier_page_magic;
  }
  ~TierPageMaker() {
    ::munmap(page, file_bytes);
    ::unlink(path.c_str());
  }
  TierPageMaker(const TierPageMaker&) = delete;
  TierPageMaker& operator=(const TierPageMaker&) = delete;

  layout::TierRange& range(uint32_t index) {
    return reinterpret_cast<layout::TierRange*>(reinterpret_cast<char*>(page) +
                                                layout::tier_ranges_offset)[index];
  }
  uint8_t* cells(uint32_t index) { return reinterpret_cast<uint8_t*>(page) + range(index).cells_offset; }

  // A range of `granules` of 2 MiB that runs: the first quarter in DDR and warm, the rest in CXL.
  layout::TierRange& add(uint32_t index, const char* name, uint64_t granules) {
    layout::TierRange& made = range(index);
    made = {};
    made.granule_bytes_log2 = 21;
    made.base = 0x7f0000000000;
    made.bytes = granules << 21;
    made.cells_offset = layout::tier_cells_offset + uint64_t{index} * layout::tier_cells_max;
    made.granules_per_cell = (granules + layout::tier_cells_max - 1) / layout::tier_cells_max;
    made.cell_count = (granules + made.granules_per_cell - 1) / made.granules_per_cell;
    std::snprintf(made.name, sizeof made.name, "%s", name);
    std::snprintf(made.policy, sizeof made.policy, "benefit-density");
    made.ddr_bytes = made.ddr_bytes_max = (granules / 4) << 21;
    made.cxl_bytes = made.bytes - made.ddr_bytes;
    made.copy_bytes_per_s_max = uint64_t{2} << 30;
    for (uint64_t i = 0; i < made.cell_count; ++i)
      cells(index)[i] = i < made.cell_count / 4 ? cell(1, 7) : cell(2, i % 3 == 0 ? 2 : 0);
    std::atomic_ref(made.state)
        .store(static_cast<uint32_t>(layout::TierState::running), std::memory_order_release);
    return made;
  }

  static uint8_t cell(unsigned residency, unsigned heat, bool busy = false) {
    return static_cast<uint8_t>(residency << layout::cell_residency_shift | (busy ? layout::cell_busy : 0u) |
                                heat);
  }

  static constexpr uint64_t file_bytes =
      layout::tier_cells_offset + uint64_t{layout::tier_ranges_max} * layout::tier_cells_max;
  const std::string directory;
  const std::string path;
  layout::TierPage* page = nullptr;
};

// The engine's part of requests: carries out what is asked for, or answers as `answer_with` says.
class TierAnswerer {
 public:
  explicit TierAnswerer(TierPageMaker& maker) : maker_(maker) {}

  layout::TierAnswer answer_with = layout::TierAnswer::done;
  uint32_t raw_answer = UINT32_MAX;  // not UINT32_MAX: an answer that is none

  // One round over all ranges.
  void round() {
    for (uint32_t i = 0; i < layout::tier_ranges_max; ++i) answer(maker_.range(i));
  }

 private:
  void answer(layout::TierRange& range) {
    const uint32_t number = std::atomic_ref(range.request).load(std::memory_order_acquire);
    if (range.state == 0 || number == range.applied) return;
    uint32_t result = raw_answer != UINT32_MAX ? raw_answer : static_cast<uint32_t>(answer_with);
    if (result == 0) {
      range.state = static_cast<uint32_t>(range.wanted_paused != 0 ? layout::TierState::paused
                                                                   : layout::TierState::running);
      if (range.wanted_ddr_bytes_max != UINT64_MAX) range.ddr_bytes_max = range.wanted_ddr_bytes_max;
      if (range.wanted_copy_bytes_per_s_max != UINT64_MAX)
        range.copy_bytes_per_s_max = range.wanted_copy_bytes_per_s_max;
      if (range.wanted_policy[0] != 0) std::memcpy(range.policy, range.wanted_policy, sizeof range.policy);
    }
    std::atomic_ref(range.answer).store(result, std::memory_order_relaxed);
    std::atomic_ref(range.applied).store(number, std::memory_order_release);
  }

  TierPageMaker& maker_;
};

}  // namespace terrace::test
