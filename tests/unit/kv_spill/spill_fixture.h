// SPDX-License-Identifier: Apache-2.0
// A spill folder on the disk of the test, and blocks whose bytes follow from their keys.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "terrace/kv_spill.h"

namespace terrace {

inline std::vector<std::byte> spill_bytes(std::string_view key, size_t bytes) {
  std::vector<std::byte> made(bytes);
  uint64_t state = std::hash<std::string_view>()(key);
  for (size_t at = 0; at < bytes; at += 8) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    std::memcpy(made.data() + at, &state, std::min<size_t>(8, bytes - at));
  }
  return made;
}

// Each key has one length, too.
inline size_t spill_length(const std::string& key, size_t most) {
  return std::hash<std::string>()(key + " length") % (most + 1);
}

struct SpillFolderFixture {
  explicit SpillFolderFixture(const char* below = nullptr) {
    const char* const tmp = below != nullptr ? below : ::getenv("TMPDIR");
    std::string name = std::string(tmp != nullptr ? tmp : "/tmp") + "/terrace-spill-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    folder = name;
  }
  ~SpillFolderFixture() { std::filesystem::remove_all(folder); }
  SpillFolderFixture(const SpillFolderFixture&) = delete;
  SpillFolderFixture& operator=(const SpillFolderFixture&) = delete;

  static KvSpillOptions small() {
    return {.bytes = 4 << 20, .block_bytes = 4096, .max_block_bytes = 64 << 10, .queue_depth = 8};
  }
  std::shared_ptr<KvSpill> open(const KvSpillOptions& options = small()) const {
    auto spill = KvSpill::open(folder, options);
    REQUIRE_MESSAGE(spill.ok(), spill.error().to_string());
    return *spill;
  }
  std::string file(const char* name) const { return folder + "/" + name; }

  std::string folder;
  KvNamespace name_space = *KvNamespace::of("test");
};

inline Status spill_put(KvSpill& spill, const KvNamespace& name_space, const std::string& key,
                        size_t bytes = 4096, uint64_t expires_unix_s = 0) {
  const auto made = spill_bytes(key, bytes);
  return spill.put(name_space, {.key = key, .bytes = made, .expires_unix_s = expires_unix_s});
}

// 1: there and right; 0: not there; -1: wrong.
inline int spill_check(KvSpill& spill, const KvNamespace& name_space, const std::string& key,
                       size_t bytes = 4096) {
  std::vector<std::byte> into(bytes);
  const auto got = spill.get(name_space, {.key = key, .into = into});
  if (!got.ok()) return got.error().code == ErrorCode::not_found ? 0 : -1;
  return *got == bytes && into == spill_bytes(key, bytes) ? 1 : -1;
}

// Runs `body` in a process of its own, which must not end by itself but by its return.
class SpillChild {
 public:
  explicit SpillChild(const std::function<int()>& body) {
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) ::_exit(body());
  }
  ~SpillChild() {
    if (pid_ > 0) kill();
  }
  SpillChild(const SpillChild&) = delete;
  SpillChild& operator=(const SpillChild&) = delete;

  void kill() {
    ::kill(pid_, SIGKILL);
    (void)wait();
  }
  // Its exit status; -1: a signal ended it.
  int wait() {
    int status = 0;
    REQUIRE(::waitpid(std::exchange(pid_, -1), &status, 0) > 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace terrace
