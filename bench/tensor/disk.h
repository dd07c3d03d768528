// SPDX-License-Identifier: Apache-2.0
// The speed of a plain program on the same disk: one thread, 1 MiB at a time, O_DIRECT, as `dd` does it.
#pragma once

#include <cstdint>
#include <string>

namespace terrace::bench {

// Gone with what is in it when it goes.
class BenchDirectory {
 public:
  explicit BenchDirectory(const std::string& parent);
  ~BenchDirectory();
  BenchDirectory(const BenchDirectory&) = delete;
  BenchDirectory& operator=(const BenchDirectory&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Seconds. `*direct`: whether the file system has O_DIRECT; else through the page cache.
double plain_read_s(const std::string& path, bool* direct);
// `bytes` rounded up to 1 MiB; space taken first and the file synced, as an export does.
double plain_write_s(const std::string& path, uint64_t bytes);

double seconds_since(uint64_t begin_ns);
double gib_per_s(uint64_t bytes, double seconds);

}  // namespace terrace::bench
