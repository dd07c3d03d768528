// SPDX-License-Identifier: Apache-2.0
#include "cli/tier/tier_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "cli/terminal/output.h"
#include "core/base/units.h"
#include "core/os/fault_guard.h"

namespace terrace::cli {
namespace {

using layout::TierPage;
using layout::TierRange;
using layout::TierState;

// What a whole page takes; anything behind that is not looked at.
constexpr uint64_t page_bytes_max =
    layout::tier_cells_offset + uint64_t{layout::tier_ranges_max} * layout::tier_cells_max;

Error page_error(ErrorCode code, const std::string& path, const std::string& why) {
  return Error{.code = code, .where = tier_where, .detail = path + " " + why};
}

Error cut_short(const std::string& path) {
  return page_error(ErrorCode::corrupt, path,
                    "became shorter while it was read: its process is ending, or broken");
}

// At most `size` bytes of a text that need not be terminated, safe to print.
std::string text_of(const char* from, size_t size) {
  std::string text = printable(std::string_view(from, ::strnlen(from, size)));
  for (char& c : text)
    if (static_cast<unsigned char>(c) > 0x7e) c = '?';
  return text;
}

// Why the numbers of a range cannot be; nullptr: they can.
const char* fault_of(const TierRange& range) {
  if (range.state > static_cast<uint32_t>(TierState::forked)) return "is in a state that is none";
  if (range.granule_bytes_log2 < 12 || range.granule_bytes_log2 > 40) return "has granules of no possible size";
  const uint64_t granule = uint64_t{1} << range.granule_bytes_log2;
  if (range.bytes == 0 || range.bytes % granule != 0) return "has no whole granules";
  if (range.base + range.bytes < range.base) return "does not fit into an address space";
  return nullptr;
}

const char* fault_of_cells(const TierRange& range, uint64_t file_bytes) {
  const uint64_t granules = range.bytes >> range.granule_bytes_log2;
  if (range.cell_count == 0 || range.cell_count > layout::tier_cells_max)
    return "has an impossible number of cells";
  if (range.cells_offset < layout::tier_cells_offset || range.cells_offset > file_bytes ||
      file_bytes - range.cells_offset < range.cell_count)
    return "has cells outside the file";
  // Each cell but the last stands for as many granules as all others.
  if (range.granules_per_cell == 0 || range.granules_per_cell > granules ||
      (granules - 1) / range.granules_per_cell + 1 != range.cell_count)
    return "has another number of cells than its size asks for";
  return nullptr;
}

}  // namespace

std::optional<uint32_t> plain_number(std::string_view text, uint32_t max) {
  uint32_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = failed == std::errc{} && end == text.data() + text.size() && number <= max;
  if (!whole || std::to_string(number) != text) return std::nullopt;
  return number;
}

std::optional<int> process_number(std::string_view name) {
  const auto number = plain_number(name, INT32_MAX);
  if (!number.has_value() || *number == 0) return std::nullopt;
  return static_cast<int>(*number);
}

// --- one page -----------------------------------------------------------------------------------------

TierPageFile::TierPageFile(UniqueFd fd, std::string path, uint32_t uid, int pid, char* at, uint64_t bytes)
    : fd_(std::move(fd)), path_(std::move(path)), uid_(uid), pid_(pid), at_(at), bytes_(bytes) {}

TierPageFile::TierPageFile(TierPageFile&& other) noexcept
    : fd_(std::move(other.fd_)),
      path_(std::move(other.path_)),
      uid_(other.uid_),
      pid_(other.pid_),
      at_(std::exchange(other.at_, nullptr)),
      bytes_(other.bytes_) {}

TierPageFile::~TierPageFile() {
  if (at_ != nullptr) ::munmap(at_, bytes_);
}

Result<TierPageFile> TierPageFile::open(int directory_fd, const std::string& directory, const std::string& name,
                                        uint32_t uid, TierAccess access) {
  const std::string path = directory + "/" + name;
  const auto pid = process_number(name);
  if (!pid.has_value()) return page_error(ErrorCode::corrupt, path, "is not named as a process");
  const bool writes = access == TierAccess::write;
  UniqueFd fd(::openat(directory_fd, name.c_str(),
                       (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid() && errno == ELOOP) return page_error(ErrorCode::corrupt, path, "is a symbolic link");
  if (!fd.valid()) return os_error(errno, tier_where, "cannot open " + path);
  struct stat about {};
  if (::fstat(fd.get(), &about) != 0) return os_error(errno, tier_where, "cannot look at " + path);
  if (!S_ISREG(about.st_mode) || about.st_uid != uid || about.st_nlink > 1)
    return page_error(ErrorCode::corrupt, path, "is no ordinary file of uid " + std::to_string(uid) + " alone");
  const auto size = static_cast<uint64_t>(about.st_size);
  if (size < layout::tier_cells_offset)
    return page_error(ErrorCode::corrupt, path, "is too short to be a tier page");
  const uint64_t bytes = std::min(size, page_bytes_max);
  void* at = ::mmap(nullptr, bytes, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return os_error(errno, tier_where, "cannot map " + path);
  TierPageFile file(std::move(fd), path, uid, *pid, static_cast<char*>(at), bytes);

  uint32_t magic = 0;
  uint16_t version = 0;
  const auto* page = reinterpret_cast<const TierPage*>(file.at_);
  const bool there = os::guarded([&] {
    // acquire: pairs with Engine::make_page()
    magic = std::atomic_ref(const_cast<uint32_t&>(page->magic)).load(std::memory_order_acquire);
    version = std::atomic_ref(const_cast<uint16_t&>(page->version)).load(std::memory_order_relaxed);
  });
  if (!there) return cut_short(path);
  if (magic == 0) return page_error(ErrorCode::not_found, path, "is not finished yet");
  if (magic != layout::tier_page_magic) return page_error(ErrorCode::corrupt, path, "is no tier page");
  if (version != layout::tier_page_version) {
    return page_error(ErrorCode::version_mismatch, path,
                      "is of version " + std::to_string(version) + ", this terrace reads version " +
                          std::to_string(layout::tier_page_version) +
                          "; use the one that the program runs with");
  }
  return file;
}

// Whole words, each loaded once and at once; the first with acquire: what it says was written is there.
Status TierPageFile::copy_words(uint64_t offset, void* to, size_t bytes) const {
  const bool done = os::guarded([&] {
    auto* from = reinterpret_cast<uint64_t*>(at_ + offset);
    auto* into = static_cast<char*>(to);
    for (size_t word = 0; word < bytes / sizeof(uint64_t); ++word) {
      // acquire: pairs with the engine's release of a page's magic, of a range's state: the first words.
      const auto order = word == 0 ? std::memory_order_acquire : std::memory_order_relaxed;
      const uint64_t value = std::atomic_ref(from[word]).load(order);
      std::memcpy(into + word * sizeof value, &value, sizeof value);
    }
  });
  if (!done) return cut_short(path_);
  return {};
}

Result<TierPageView> TierPageFile::read() const {
  const auto header = std::make_unique<TierPage>();
  TERRACE_RETURN_IF_ERROR(copy_words(0, header.get(), sizeof(TierPage)));
  TierPageView view;
  view.path = path_;
  view.uid = uid_;
  view.pid = pid_;
  view.start_ticks = header->start_ticks;
  view.program = text_of(header->program, sizeof header->program);
  if (header->pid != static_cast<uint32_t>(pid_))
    return page_error(ErrorCode::corrupt, path_,
                      "says that it is process " + std::to_string(header->pid) + "'s");
  if (header->range_count > layout::tier_ranges_max) {
    view.problems.push_back("says that it has " + std::to_string(header->range_count) + " ranges, of at most " +
                            std::to_string(layout::tier_ranges_max));
  }
  const uint32_t count = std::min<uint32_t>(header->range_count, layout::tier_ranges_max);
  const uint64_t file_bytes = std::min(bytes_, header->file_bytes);
  for (uint32_t index = 0; index < count; ++index) {
    TierRangeView range;
    range.index = index;
    TERRACE_RETURN_IF_ERROR(
        copy_words(layout::tier_ranges_offset + index * sizeof(TierRange), &range.numbers, sizeof(TierRange)));
    const TierRange& numbers = range.numbers;
    if (numbers.state == static_cast<uint32_t>(TierState::absent)) continue;
    const std::string number = "range " + std::to_string(index) + " ";
    if (const char* fault = fault_of(numbers); fault != nullptr) {
      view.problems.push_back(number + fault);
      continue;
    }
    range.state = static_cast<TierState>(numbers.state);
    range.name = text_of(numbers.name, sizeof numbers.name);
    range.policy = text_of(numbers.policy, sizeof numbers.policy);
    range.reason = text_of(numbers.reason, sizeof numbers.reason);
    if (const char* fault = fault_of_cells(numbers, file_bytes); fault != nullptr)
      view.problems.push_back(number + fault);
    else
      range.has_cells = true;
    view.ranges.push_back(std::move(range));
  }
  return view;
}

Result<std::vector<uint8_t>> TierPageFile::cells(const TierRangeView& range) const {
  TERRACE_CHECK(range.has_cells && range.numbers.cells_offset + range.numbers.cell_count <= bytes_,
                "only cells that were found to lie in the file are read");
  std::vector<uint8_t> cells(range.numbers.cell_count);
  const bool done = os::guarded([&] {
    auto* from = reinterpret_cast<uint8_t*>(at_ + range.numbers.cells_offset);
    for (size_t i = 0; i < cells.size(); ++i)
      cells[i] = std::atomic_ref(from[i]).load(std::memory_order_relaxed);
  });
  if (!done) return cut_short(path_);
  return cells;
}

char* TierPageFile::field(uint32_t range, size_t offset) const {
  TERRACE_CHECK(range < layout::tier_ranges_max && offset < sizeof(TierRange), "a field of a range");
  return at_ + layout::tier_ranges_offset + range * sizeof(TierRange) + offset;
}

Result<uint32_t> TierPageFile::load(uint32_t range, size_t offset) const {
  uint32_t value = 0;
  auto* from = reinterpret_cast<uint32_t*>(field(range, offset));
  // acquire: pairs with the store of `applied` in Engine::obey()
  if (!os::guarded([&] { value = std::atomic_ref(*from).load(std::memory_order_acquire); }))
    return cut_short(path_);
  return value;
}

Status TierPageFile::store(uint32_t range, size_t offset, uint32_t value) {
  auto* to = reinterpret_cast<uint32_t*>(field(range, offset));
  // release: pairs with the load of `request` in Engine::obey()
  if (!os::guarded([&] { std::atomic_ref(*to).store(value, std::memory_order_release); }))
    return cut_short(path_);
  return {};
}

Status TierPageFile::store_bytes(uint32_t range, size_t offset, const void* from, size_t bytes) {
  char* to = field(range, offset);
  const auto* source = static_cast<const char*>(from);
  const bool done = os::guarded([&] {
    for (size_t i = 0; i < bytes; ++i) std::atomic_ref(to[i]).store(source[i], std::memory_order_relaxed);
  });
  if (!done) return cut_short(path_);
  return {};
}

}  // namespace terrace::cli
