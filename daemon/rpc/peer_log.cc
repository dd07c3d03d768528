// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/peer_log.h"

#include <utility>

#include "core/base/units.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

std::string with_count(const std::string& line, uint64_t left_out) {
  return left_out == 0 ? line : line + " (" + std::to_string(left_out) + " lines about peers were left out)";
}

}  // namespace

bool PeerLog::admit(uint64_t now_ns, uint64_t& left_out) {
  if (now_ns - second_began_ns_ >= ns_per_s) {
    second_began_ns_ = now_ns;
    lines_ = 0;
  }
  if (lines_ == lines_per_s) {
    ++left_out_;
    return false;
  }
  ++lines_;
  left_out = std::exchange(left_out_, 0);
  return true;
}

void PeerLog::info(uint64_t now_ns, const std::string& line) {
  uint64_t left_out = 0;
  if (admit(now_ns, left_out)) log::info("{}", with_count(line, left_out));
}

void PeerLog::warn(uint64_t now_ns, const std::string& line) {
  uint64_t left_out = 0;
  if (admit(now_ns, left_out)) log::warn("{}", with_count(line, left_out));
}

}  // namespace terrace::daemon
