// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_replay/trace.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/prng.h"

namespace terrace::bench {
namespace {

constexpr uint64_t block_numbers_max = 1 << 26;  // a word of truth and a stamp each
constexpr uint32_t shared_prefix = 2;

void add_request(Trace& trace, uint64_t timestamp_ms, const std::vector<uint32_t>& blocks) {
  trace.requests.push_back(
      {timestamp_ms, static_cast<uint32_t>(trace.blocks.size()), static_cast<uint32_t>(blocks.size())});
  trace.blocks.insert(trace.blocks.end(), blocks.begin(), blocks.end());
}

void finish(Trace& trace) {
  std::stable_sort(
      trace.requests.begin(), trace.requests.end(),
      [](const TraceRequest& a, const TraceRequest& b) { return a.timestamp_ms < b.timestamp_ms; });
  std::vector<uint32_t> sorted = trace.blocks;
  std::sort(sorted.begin(), sorted.end());
  trace.block_count = sorted.empty() ? 0 : sorted.back() + 1;
  trace.distinct_blocks = static_cast<uint32_t>(std::unique(sorted.begin(), sorted.end()) - sorted.begin());
}

}  // namespace

Result<Trace> read_trace(const std::string& path, uint64_t requests_max) {
  std::ifstream file(path);
  if (!file) return os_error(errno, "read_trace", "cannot read " + path);
  Trace trace;
  trace.name = path.substr(path.rfind('/') + 1);
  uint64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty()) continue;
    if (requests_max != 0 && trace.requests.size() == requests_max) break;
    const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
    const auto bad = [&](const char* what) {
      return Error{ErrorCode::corrupt, 0, "read_trace",
                   path + ", line " + std::to_string(number) + ": " + what};
    };
    if (!parsed.is_object() || !parsed.contains("timestamp") || !parsed.contains("hash_ids"))
      return bad("no object with timestamp and hash_ids");
    if (!parsed["timestamp"].is_number_unsigned() || !parsed["hash_ids"].is_array())
      return bad("timestamp is no number, or hash_ids no list");
    std::vector<uint32_t> blocks;
    for (const nlohmann::json& block : parsed["hash_ids"]) {
      if (!block.is_number_unsigned() || block.get<uint64_t>() >= block_numbers_max)
        return bad("a block's number is none below 2^26");
      blocks.push_back(block.get<uint32_t>());
    }
    add_request(trace, parsed["timestamp"].get<uint64_t>(), blocks);
  }
  finish(trace);
  return trace;
}

Trace make_trace(uint32_t requests, uint64_t seed) {
  Prng prng(seed);
  Trace trace;
  trace.name = "generated";
  std::vector<std::vector<uint32_t>> conversations(16);
  uint32_t next = shared_prefix;
  for (uint32_t request = 0; request < requests; ++request) {
    std::vector<uint32_t>& blocks = conversations[prng.below(conversations.size())];
    if (blocks.size() > 24) blocks.clear();  // another one begins
    if (blocks.empty())
      for (uint32_t block = 0; block < shared_prefix; ++block) blocks.push_back(block);
    for (uint64_t added = prng.between(1, 6); added > 0; --added) blocks.push_back(next++);
    add_request(trace, request * uint64_t{20}, blocks);
  }
  finish(trace);
  return trace;
}

}  // namespace terrace::bench
