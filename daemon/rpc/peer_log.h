// SPDX-License-Identifier: Apache-2.0
// Log lines that peers can cause at will: a few a second are written, the others are counted.
//
// Place     Service owns one; what is logged because of a peer goes through it.
// Threads   The event loop's thread only.
#pragma once

#include <cstdint>
#include <string>

namespace terrace::daemon {

class PeerLog {
 public:
  static constexpr uint64_t lines_per_s = 10;

  void info(uint64_t now_ns, const std::string& line);
  void warn(uint64_t now_ns, const std::string& line);

  // Whether a line may be written at `now_ns`; then `left_out` says how many were not since the last one.
  bool admit(uint64_t now_ns, uint64_t& left_out);

 private:
  uint64_t second_began_ns_ = 0;
  uint64_t lines_ = 0;  // in this second
  uint64_t left_out_ = 0;
};

}  // namespace terrace::daemon
