// SPDX-License-Identifier: Apache-2.0
// The regions that this daemon makes again after a reboot, in a file beside the store: a CXL region exists in
// the decoders, which a reboot resets, while its contents (labels, namespaces, bytes) stay.
//
// Place     daemon/memory/region; read and written by RegionMaker.
// Format    TOML of the simplest kind, for people to read; only what write() makes is read back.
// Crash     A new version is written beside, synchronised, and renamed over the old one: a reader sees either.
// Threads   One call at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace terrace::daemon {

struct RegionRecord {
  std::string serial;
  std::vector<std::string> memdevs;  // in the order of their interleaving
  bool ram = false;
  unsigned granularity = 0;
  uint64_t bytes = 0;
  std::string uuid;
  std::string root;  // the window it was made in; another boot may call it otherwise
  // Whether it was ever finished. One that was not holds nothing, and is forgotten at the next start.
  bool made = false;
  uint64_t position_bytes = 0;  // CxlRegion's, once it is made: made again elsewhere it would show other bytes

  bool operator==(const RegionRecord&) const = default;
};

class RegionRecords {
 public:
  // `path` empty: nothing is kept (for tests and trials).
  explicit RegionRecords(std::string path) : path_(std::move(path)) {}

  // What the file says; none where there is no file.
  // Errors    corrupt   it was changed by somebody, or damaged; says the line
  Result<std::vector<RegionRecord>> read() const;
  // Durable when it returns.
  Status write(const std::vector<RegionRecord>& records) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The same as text, without the file.
std::string format_records(const std::vector<RegionRecord>& records);
Result<std::vector<RegionRecord>> parse_records(const std::string& text);

}  // namespace terrace::daemon
