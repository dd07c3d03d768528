// SPDX-License-Identifier: Apache-2.0
#include "bench/kv_day/shared.h"

#include <algorithm>
#include <cstdio>
#include <new>

#include "bench/kv_day/block.h"
#include "bench/lease/manager.h"

namespace terrace::bench::day {
namespace {

uint64_t requests_place() {
  return round_up(sizeof(Control), 64);
}
uint64_t blocks_place(uint64_t requests) {
  return round_up(requests_place() + requests * sizeof(TraceRequest), 64);
}

}  // namespace

std::string key_of(uint32_t block) {
  char text[24];
  std::snprintf(text, sizeof text, "day/%08x", block);
  return text;
}

Shared::Shared(const Settings& settings, const Trace& trace)
    : memory_(blocks_place(trace.requests.size()) + trace.blocks.size() * sizeof(uint32_t)) {
  control_ = new (memory_.bytes().data()) Control;
  control_->settings = settings;
  control_->requests = static_cast<uint32_t>(trace.requests.size());
  control_->block_entries = static_cast<uint32_t>(trace.blocks.size());
  control_->block_count = trace.block_count;
  std::byte* const at = memory_.bytes().data();
  std::memcpy(at + requests_place(), trace.requests.data(), trace.requests.size() * sizeof(TraceRequest));
  std::memcpy(at + blocks_place(control_->requests), trace.blocks.data(),
              trace.blocks.size() * sizeof(uint32_t));
  find_places();
}

Shared::Shared(int fd) : memory_(kv::MemoryFile::of(fd)) {
  control_ = reinterpret_cast<Control*>(memory_.bytes().data());
  if (memory_.bytes().size() < sizeof(Control) || control_->bytes != sizeof(Control))
    die("this program is another version than the one that started it");
  find_places();
}

void Shared::find_places() {
  const std::byte* const at = memory_.bytes().data();
  requests_ = {reinterpret_cast<const TraceRequest*>(at + requests_place()), control_->requests};
  blocks_ = {reinterpret_cast<const uint32_t*>(at + blocks_place(control_->requests)), control_->block_entries};
}

std::span<const uint32_t> Shared::blocks_of(uint64_t request) const {
  const TraceRequest& one = requests_[request % requests_.size()];
  return blocks_.subspan(one.first, one.count);
}

uint32_t Shared::hour_of(uint64_t request) const {
  return static_cast<uint32_t>(request % requests_.size() * hours / requests_.size());
}

void Shared::found_wrong(uint64_t block, const char* how, const std::string& what) const {
  if (control_->wrong.fetch_add(1) != 0) return;
  std::snprintf(control_->first_wrong, sizeof control_->first_wrong, "block %llu, %s: %s",
                static_cast<unsigned long long>(block), how, what.c_str());
}

bool Shared::judge(uint64_t block, std::span<const std::byte> bytes, const char* how) const {
  if (bytes.size() != settings().block_bytes) {
    found_wrong(block, how, std::to_string(bytes.size()) + " bytes");
    return false;
  }
  const Seen seen = see_block(bytes);
  if (seen.block != block)
    found_wrong(block, how, "it is block " + std::to_string(seen.block));
  else if (seen.wrong_at != 0)
    found_wrong(block, how, "torn from byte " + std::to_string(seen.wrong_at));
  else if (seen.put.process >= processes_max || seen.put.number >= control_->puts_begun[seen.put.process])
    found_wrong(block, how, "of a put that nobody has begun");
  else
    return true;
  return false;
}

}  // namespace terrace::bench::day
