// SPDX-License-Identifier: Apache-2.0
// The parts of KvSpace for both kinds of memory: errors with their texts, checks, and the parts of public objects that
// call back into the space.
#pragma once

#include <ctime>
#include <string>

#include "libclient/kv/block_part.h"
#include "libclient/kv/member_space.h"
#include "terrace/kv_space.h"

namespace terrace {

class KvSpaceBase : public MemberKvSpace {
 public:
  virtual Status finish_write(KvWrite::State& write) = 0;
  virtual void fill_write(const KvWrite::State& write, std::span<const std::byte> bytes) = 0;
  virtual void abort_write(const KvWrite::State& write) = 0;
  // Of the space's own blocks; no caller can name it.
  static const KvNamespace& own_name_space();
  static Status check_key(std::string_view key);
  static uint64_t now_unix_ms() {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1'000'000;
  }

 protected:
  static Error refuse(ErrorCode code, std::string detail);
  // "block 'key'", or its bytes in hexadecimal.
  static std::string who(std::string_view key);
  static Error not_found(std::string_view key);
  static Error read_only();
  static Error in_child();
  static Error too_short(std::string_view key, uint64_t given, uint64_t needed);
  static Error error_of(coherence::Outcome outcome, std::string_view key);
  static uint64_t now_unix_s() { return static_cast<uint64_t>(std::time(nullptr)); }
};

struct KvWrite::State {
  KvSpaceBase* space = nullptr;
  std::span<std::byte> bytes;
  std::span<const std::byte> memory;  // of the space
  kv::Room room;
  kv::Block block;
  std::string key;
  bool open = true;
};

}  // namespace terrace
