// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/devdax/dax_memory_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace terrace::daemon {
namespace {

constexpr const char* where = "DaxMemoryRecord";
constexpr const char* magic = "terrace-dax-record-1";
constexpr const char* unknown_pins = "?";

}  // namespace

void RangeSet::add(DaxRange range) {
  if (range.bytes == 0) return;
  uint64_t start = range.start, end = range.end();
  auto at = ends_.upper_bound(start);
  if (at != ends_.begin() && std::prev(at)->second >= start) --at;
  while (at != ends_.end() && at->first <= end) {
    start = std::min(start, at->first);
    end = std::max(end, at->second);
    at = ends_.erase(at);
  }
  ends_[start] = end;
}

void RangeSet::remove(DaxRange range) {
  for (const DaxRange part : within(range)) {
    const auto whole = std::prev(ends_.upper_bound(part.start));
    const uint64_t start = whole->first, end = whole->second;
    ends_.erase(whole);
    if (start < part.start) ends_[start] = part.start;
    if (part.end() < end) ends_[part.end()] = end;
  }
}

std::vector<DaxRange> RangeSet::within(DaxRange range) const {
  std::vector<DaxRange> parts;
  auto at = ends_.upper_bound(range.start);
  if (at != ends_.begin()) --at;
  for (; at != ends_.end() && at->first < range.end(); ++at) {
    const uint64_t start = std::max(at->first, range.start), end = std::min(at->second, range.end());
    if (start < end) parts.push_back({start, end - start});
  }
  return parts;
}

std::vector<DaxRange> RangeSet::all() const {
  return within({0, UINT64_MAX});
}

void DaxMemoryRecord::track(const std::string& serial, DaxRange device) {
  const MutexLock lock(mutex_);
  if (const auto at = entries_.find(serial); at != entries_.end() && at->second.device == device) return;
  Entry entry{.device = device, .unerased = {}};
  if (!load(serial, entry)) {
    entry = Entry{.device = device, .unerased = {}};
    entry.unerased.add(device);
    (void)save(serial, entry);  // without it the next start takes all of it for unerased: that is safe
  }
  entries_[serial] = std::move(entry);
}

// Called each second while the device is away: what is kept stays on file.
void DaxMemoryRecord::forget(const std::string& serial) {
  const MutexLock lock(mutex_);
  Entry known;
  if (const auto at = entries_.find(serial); at != entries_.end()) {
    known = std::move(at->second);
    entries_.erase(at);
  } else if (!load(serial, known)) {
    known.kept.clear();  // of another boot, or torn: there may be words before the tear
  }
  Entry left;
  left.device = known.device;
  left.unerased.add(left.device);
  left.idle_count = known.idle_count;
  left.kept = std::move(known.kept);
  if (!left.kept.empty()) {
    (void)save(serial, left);
  } else if (!directory_.empty() && !read_only_) {
    ::unlink(path_of(serial).c_str());
  }
}

Status DaxMemoryRecord::may_claim(const std::string& serial, DaxRange device, const StoreClaim& claim) const {
  const MutexLock lock(mutex_);
  Entry found{.device = device, .unerased = {}};
  if (const auto at = entries_.find(serial); at != entries_.end()) {
    found = at->second;
  } else if (!load(serial, found)) {
    return {};
  }
  if (!found.store.valid() || found.store == claim.store || claim.take_over) return {};
  return Error{
      .code = ErrorCode::invalid_argument,
      .where = where,
      .detail = "device " + serial + " was adopted by the store " + store_id_text(found.store) + " (" +
                found.owner + "), not by " + store_id_text(claim.store) + " (" + claim.owner +
                "): nothing was touched. Start with the " + claim.remedy +
                " that names it; or, to destroy what leases have there, start once with --destroy-orphans"};
}

Status DaxMemoryRecord::claim(const std::string& serial, const StoreClaim& claim) {
  const MutexLock lock(mutex_);
  const auto at = entries_.find(serial);
  if (at == entries_.end() || (at->second.store == claim.store && at->second.owner == claim.owner)) return {};
  at->second.store = claim.store;
  at->second.owner = claim.owner;
  for (char& c : at->second.owner)
    if (static_cast<unsigned char>(c) < 0x20) c = '?';
  return save(serial, at->second);
}

Status DaxMemoryRecord::begin_hand_over(const std::string& serial) {
  const MutexLock lock(mutex_);
  const auto at = entries_.find(serial);
  if (at == entries_.end() || at->second.hand_over) return {};
  at->second.hand_over = true;
  const Status saved = save(serial, at->second);
  if (!saved.ok()) at->second.hand_over = false;  // the next try must write it
  return saved;
}

bool DaxMemoryRecord::had_hand_over(const std::string& serial) const {
  const MutexLock lock(mutex_);
  const auto at = entries_.find(serial);
  return at != entries_.end() && at->second.hand_over;
}

Status DaxMemoryRecord::mark_unerased(const std::string& serial, const std::vector<DaxRange>& ranges) {
  const MutexLock lock(mutex_);
  const auto at = entries_.find(serial);
  if (at == entries_.end()) return {};  // unerased as a whole, once it is tracked
  for (const DaxRange& range : ranges) at->second.unerased.add(range);
  return save(serial, at->second);
}

void DaxMemoryRecord::mark_erased(const std::string& serial, const std::vector<DaxRange>& ranges) {
  const MutexLock lock(mutex_);
  const auto at = entries_.find(serial);
  if (at == entries_.end()) return;
  bool changed = false;
  for (const DaxRange& range : ranges) {
    changed |= !at->second.unerased.within(range).empty();
    at->second.unerased.remove(range);
  }
  if (changed) (void)save(serial, at->second);  // an older file only has it erased once more
}

std::vector<DaxRange> DaxMemoryRecord::unerased(const std::string& serial,
                                                const std::vector<DaxRange>& ranges) const {
  const MutexLock lock(mutex_);
  const auto at = entries_.find(serial);
  if (at == entries_.end()) return ranges;
  std::vector<DaxRange> found;
  for (const DaxRange& range : ranges)
    for (const DaxRange& part : at->second.unerased.within(range)) found.push_back(part);
  return found;
}

std::optional<uint64_t> DaxMemoryRecord::idle_count(const std::string& serial) const {
  const MutexLock lock(mutex_);
  const auto at = entries_.find(serial);
  return at == entries_.end() ? std::nullopt : at->second.idle_count;
}

void DaxMemoryRecord::set_idle_count(const std::string& serial, uint64_t count) {
  const MutexLock lock(mutex_);
  const auto at = entries_.find(serial);
  if (at == entries_.end() || at->second.idle_count == count) return;
  at->second.idle_count = count;
  (void)save(serial, at->second);  // without it the next start learns it again
}

Status DaxMemoryRecord::keep(const std::string& serial, KeptMemory memory) {
  const MutexLock lock(mutex_);
  const auto at = entries_.find(serial);
  if (at == entries_.end()) return {};
  std::erase_if(at->second.kept, [&](const KeptMemory& one) { return one.ranges == memory.ranges; });
  at->second.kept.push_back(std::move(memory));
  return save(serial, at->second);
}

void DaxMemoryRecord::let_go(const std::string& serial, const std::vector<DaxRange>& ranges) {
  const MutexLock lock(mutex_);
  const auto at = entries_.find(serial);
  if (at == entries_.end()) return;
  const auto same = [&](const KeptMemory& one) { return one.ranges == ranges; };
  if (std::erase_if(at->second.kept, same) > 0)
    (void)save(serial, at->second);  // an older file keeps it longer
}

std::vector<KeptMemory> DaxMemoryRecord::kept(const std::string& serial) const {
  const MutexLock lock(mutex_);
  const auto at = entries_.find(serial);
  return at == entries_.end() ? std::vector<KeptMemory>{} : at->second.kept;
}

// The last line says that the file is whole.
bool DaxMemoryRecord::load(const std::string& serial, Entry& entry) const {
  if (directory_.empty() || boot_id_.empty()) return false;
  std::ifstream file(path_of(serial));
  std::string word, boot;
  DaxRange device;
  if (!(file >> word >> boot >> device.start >> device.bytes) || word != magic || boot != boot_id_)
    return false;
  if (entry.device == DaxRange{}) entry.device = device;
  if (device != entry.device) return false;
  while (file >> word) {
    if (word == "end") return true;
    if (!read_line(file, word, entry)) return false;
  }
  return false;
}

bool DaxMemoryRecord::read_line(std::istream& file, const std::string& word, Entry& entry) {
  DaxRange range;
  if (word == "hand-over") {
    entry.hand_over = true;
    return true;
  }
  if (word == "store") {
    std::string id;
    if (!(file >> id) || !std::getline(file >> std::ws, entry.owner)) return false;
    const auto store = parse_store_id(id);
    if (store.has_value()) entry.store = *store;
    return store.has_value();
  }
  if (word == "idle") return static_cast<bool>(file >> entry.idle_count.emplace());
  if (word == "kept") {
    std::string pins;
    size_t ranges = 0;
    if (!(file >> pins >> ranges)) return false;
    KeptMemory memory;
    if (pins != unknown_pins) memory.pins = std::strtoll(pins.c_str(), nullptr, 10);
    for (size_t i = 0; i < ranges && file >> range.start >> range.bytes; ++i) memory.ranges.push_back(range);
    entry.kept.push_back(std::move(memory));
    return static_cast<bool>(file);
  }
  if (!(file >> range.start >> range.bytes)) return false;
  if (word == "measured") return true;  // of earlier managers, which kept it here
  if (word != "unerased") return false;
  entry.unerased.add(range);
  return true;
}

Status DaxMemoryRecord::save(const std::string& serial, const Entry& entry) const {
  if (directory_.empty() || read_only_) return {};
  std::ostringstream text;
  text << magic << ' ' << boot_id_ << ' ' << entry.device.start << ' ' << entry.device.bytes << '\n';
  for (const DaxRange& range : entry.unerased.all())
    text << "unerased " << range.start << ' ' << range.bytes << '\n';
  if (entry.hand_over) text << "hand-over\n";
  if (entry.store.valid()) text << "store " << store_id_text(entry.store) << ' ' << entry.owner << '\n';
  if (entry.idle_count.has_value()) text << "idle " << *entry.idle_count << '\n';
  for (const KeptMemory& memory : entry.kept) {
    text << "kept " << (memory.pins.has_value() ? std::to_string(*memory.pins) : unknown_pins) << ' '
         << memory.ranges.size();
    for (const DaxRange& range : memory.ranges) text << ' ' << range.start << ' ' << range.bytes;
    text << '\n';
  }
  text << "end\n";
  const std::string path = path_of(serial), part = path + ".new", content = text.str();
  const auto cannot = [&] { return os_error(errno, where, "cannot write " + part); };
  if (::mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) return cannot();
  const UniqueFd file(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return cannot();
  if (::write(file.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size())) {
    if (errno == 0) errno = ENOSPC;
    return cannot();
  }
  if (::rename(part.c_str(), path.c_str()) != 0) return cannot();
  return {};
}

}  // namespace terrace::daemon
