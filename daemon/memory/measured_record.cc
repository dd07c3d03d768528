// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/measured_record.h"

#include <cstdio>
#include <fstream>
#include <sstream>
#include <utility>

namespace terrace::daemon {
namespace {

constexpr const char* magic = "terrace-measured-1";

}  // namespace

MeasuredRecord::MeasuredRecord(std::string path) : path_(std::move(path)) {
  if (!path_.empty()) load();
}

os::MemorySpeed MeasuredRecord::find(const std::string& serial, uint64_t device_bytes) const {
  const MutexLock lock(mutex_);
  const auto at = entries_.find(serial);
  return at == entries_.end() || at->second.device_bytes != device_bytes ? os::MemorySpeed{} : at->second.speed;
}

TierAttributes with_measured_speed(TierAttributes told, const MeasuredRecord* record, const std::string& serial,
                                   uint64_t device_bytes) {
  return record == nullptr ? told : with_measured_speed(told, record->find(serial, device_bytes));
}

void MeasuredRecord::set(const std::string& serial, uint64_t device_bytes, os::MemorySpeed speed) {
  if (!speed.known()) return;
  const MutexLock writing(writing_);
  {
    const MutexLock lock(mutex_);
    entries_[serial] = {device_bytes, speed};
  }
  if (!path_.empty()) save();
}

void MeasuredRecord::forget(const std::string& serial) {
  const MutexLock writing(writing_);
  {
    const MutexLock lock(mutex_);
    if (entries_.erase(serial) == 0) return;
  }
  if (!path_.empty()) save();
}

// The last line says that the file is whole; one that is not says nothing.
void MeasuredRecord::load() {
  std::ifstream file(path_);
  std::string word;
  std::map<std::string, Entry> entries;
  if (!(file >> word) || word != magic) return;
  while (file >> word) {
    if (word == "end") {
      const MutexLock lock(mutex_);
      entries_ = std::move(entries);
      return;
    }
    Entry entry;
    if (!(file >> entry.device_bytes >> entry.speed.latency_ns >> entry.speed.bandwidth_bytes_per_s)) return;
    if (entry.speed.known()) entries[word] = entry;
  }
}

void MeasuredRecord::save() const {
  std::ostringstream text;
  text << magic << '\n';
  {
    const MutexLock lock(mutex_);
    for (const auto& [serial, entry] : entries_)
      text << serial << ' ' << entry.device_bytes << ' ' << entry.speed.latency_ns << ' '
           << entry.speed.bandwidth_bytes_per_s << '\n';
  }
  text << "end\n";
  const std::string part = path_ + ".new";
  std::ofstream file(part, std::ios::trunc);
  file << text.str();
  file.close();
  if (!file.fail()) (void)std::rename(part.c_str(), path_.c_str());
}

}  // namespace terrace::daemon
