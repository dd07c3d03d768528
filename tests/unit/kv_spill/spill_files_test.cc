// SPDX-License-Identifier: Apache-2.0
// A spill folder whose files are not as they should be, and disks that take no more: never a wrong block.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <random>

#include "tests/support/eventually.h"
#include "tests/support/skip.h"
#include "tests/unit/kv_spill/spill_fixture.h"

namespace terrace {
namespace {

constexpr int blocks_put = 150;

void fill(KvSpill& spill, const KvNamespace& name_space, int round = 0) {
  for (int block = 0; block < blocks_put; ++block) {
    const std::string key = std::to_string(round) + "/" + std::to_string(block);
    REQUIRE(spill_put(spill, name_space, key, spill_length(key, 20'000)).ok());
  }
  REQUIRE(spill.drain().ok());
}

// How many of them are there; none may be wrong.
int count_right(KvSpill& spill, const KvNamespace& name_space, int round = 0) {
  int right = 0;
  for (int block = 0; block < blocks_put; ++block) {
    const std::string key = std::to_string(round) + "/" + std::to_string(block);
    const int check = spill_check(spill, name_space, key, spill_length(key, 20'000));
    CHECK_MESSAGE(check >= 0, key);
    right += check > 0 ? 1 : 0;
  }
  return right;
}

void garble(const std::string& file, std::mt19937_64& random, int places, uint64_t from = 0) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  const uint64_t length = std::filesystem::file_size(file);
  for (int place = 0; place < places; ++place) {
    stream.seekp(static_cast<std::streamoff>(from + random() % (length - from)));
    for (uint64_t bytes = 1 + random() % 64; bytes > 0; --bytes) stream.put(static_cast<char>(random()));
  }
}

TEST_CASE("garbled indexes and data make misses, while they are used and when they are opened") {
  for (const char* const file : {"kv-spill.00.index", "kv-spill.data"}) {
    INFO(file);
    std::mt19937_64 random(7);
    SpillFolderFixture scene;
    auto spill = scene.open();
    fill(*spill, scene.name_space);
    CHECK(count_right(*spill, scene.name_space) == blocks_put);
    garble(scene.file(file), random, 40, 4096);
    (void)count_right(*spill, scene.name_space);
    spill.reset();
    garble(scene.file(file), random, 300, 4096);
    spill = scene.open();
    const int left = count_right(*spill, scene.name_space);
    CHECK(left < blocks_put);
    if (std::string(file) == "kv-spill.data") CHECK(spill->counters().wrong > 0);
    fill(*spill, scene.name_space, 1);
    CHECK(count_right(*spill, scene.name_space, 1) == blocks_put);
  }
}

TEST_CASE("files that are cut off while they are mapped end in misses or in an error, not in a signal") {
#if defined(__SANITIZE_THREAD__)
  TERRACE_SKIP(races, "memory that goes away, which ends a program under this sanitizer");
#else
  for (const char* const file : {"kv-spill.00.index", "kv-spill.data", "kv-spill.map"}) {
    INFO(file);
    SpillFolderFixture scene;
    auto spill = scene.open();
    fill(*spill, scene.name_space);
    REQUIRE(::truncate(scene.file(file).c_str(), 0) == 0);
    for (int block = 0; block < blocks_put; ++block) {
      const std::string key = "0/" + std::to_string(block);
      std::vector<std::byte> into(20'000);
      const auto got = spill->get(scene.name_space, {.key = key, .into = into});
      REQUIRE(!got.ok());
      CHECK((got.error().code == ErrorCode::not_found || got.error().code == ErrorCode::unavailable));
    }
    (void)spill_put(*spill, scene.name_space, "more");
    (void)spill->drain();
    if (std::string(file) == "kv-spill.map")
      CHECK(test::eventually([&] { return spill->stat().ok() == false; }));
    spill.reset();
    const auto again = KvSpill::open(scene.folder, SpillFolderFixture::small());
    if (std::string(file) == "kv-spill.map") {
      REQUIRE(!again.ok());
      CHECK(again.error().code == ErrorCode::corrupt);
      CHECK(again.error().detail.find("delete its files") != std::string::npos);
    } else {
      REQUIRE(again.ok());
      fill(**again, scene.name_space, 1);
      CHECK(count_right(**again, scene.name_space, 1) == blocks_put);
    }
  }
#endif
}

TEST_CASE("after a power cut pages of several moments lie beside each other, and no block is wrong") {
  for (int seed = 1; seed <= 3; ++seed) {
    std::mt19937_64 random(seed);
    SpillFolderFixture scene, cut;
    {
      auto spill = scene.open();
      const auto copy_pages = [&](unsigned of_16) {
        for (const auto& entry : std::filesystem::directory_iterator(scene.folder)) {
          std::ifstream from(entry.path(), std::ios::binary);
          const std::string to_name = cut.file(entry.path().filename().c_str());
          if (!std::filesystem::exists(to_name)) std::ofstream(to_name, std::ios::binary).put('\0');
          std::fstream to(to_name, std::ios::in | std::ios::out | std::ios::binary);
          std::vector<char> page(4096);
          for (std::streamoff at = 0; from.read(page.data(), 4096); at += 4096) {
            if (random() % 16 >= of_16 && at != 0) continue;
            to.seekp(at);
            to.write(page.data(), 4096);
          }
        }
      };
      for (int round = 0; round < 8; ++round) {
        fill(*spill, scene.name_space, round);
        copy_pages(round == 0 ? 16 : 8);
      }
    }
    const auto spill = cut.open();
    int right = 0;
    for (int round = 0; round < 8; ++round) right += count_right(*spill, scene.name_space, round);
    CHECK(right > 0);
    CHECK(spill->counters().wrong > 0);
    fill(*spill, scene.name_space, 9);
    CHECK(count_right(*spill, scene.name_space, 9) == blocks_put);
  }
}

TEST_CASE("a map that makes no sense is refused and left as it is") {
  SpillFolderFixture scene;
  scene.open().reset();
  for (const uint64_t place : {0, 8, 12, 40, 48, 56, 84}) {
    std::filesystem::copy_file(scene.file("kv-spill.map"), scene.file("kept"));
    std::fstream map(scene.file("kv-spill.map"), std::ios::in | std::ios::out | std::ios::binary);
    map.seekg(static_cast<std::streamoff>(place));
    const int byte = map.get();
    map.seekp(static_cast<std::streamoff>(place));
    map.put(static_cast<char>(byte + 1));
    map.close();
    const auto opened = KvSpill::open(scene.folder, SpillFolderFixture::small());
    REQUIRE(!opened.ok());
    const bool version = place == 8;
    CHECK(opened.error().code == (version ? ErrorCode::version_mismatch : ErrorCode::corrupt));
    std::filesystem::rename(scene.file("kept"), scene.file("kv-spill.map"));
  }
  CHECK(KvSpill::open(scene.folder).ok());
}

TEST_CASE("a folder has one budget; another one begins it anew once nobody uses it") {
  SpillFolderFixture scene;
  KvSpillOptions more = SpillFolderFixture::small();
  more.bytes = 8 << 20;
  {
    const auto spill = scene.open();
    fill(*spill, scene.name_space);
    const auto refused = KvSpill::open(scene.folder, more);
    REQUIRE(!refused.ok());
    CHECK(refused.error().code == ErrorCode::busy);
    CHECK(refused.error().detail.find("4194304") != std::string::npos);
    CHECK(scene.open({})->stat()->budget_bytes == 4 << 20);
  }
  const auto spill = scene.open(more);
  CHECK(spill->stat()->budget_bytes == 8 << 20);
  CHECK(spill->stat()->blocks == 0);
  CHECK(count_right(*spill, scene.name_space) == 0);
  fill(*spill, scene.name_space);
  CHECK(count_right(*spill, scene.name_space) == blocks_put);
}

TEST_CASE("what cannot be a spill folder says why") {
  SpillFolderFixture scene;
  const auto code = [&](const std::string& folder, const KvSpillOptions& options) {
    const auto opened = KvSpill::open(folder, options);
    return opened.ok() ? ErrorCode::ok : opened.error().code;
  };
  CHECK(code(scene.folder + "/none", SpillFolderFixture::small()) == ErrorCode::not_found);
  CHECK(code(scene.folder, {}) == ErrorCode::invalid_argument);  // no budget
  CHECK(code(scene.folder, {.bytes = 1000}) == ErrorCode::invalid_argument);
  CHECK(code(scene.folder, {.bytes = 1 << 20, .max_block_bytes = 1 << 20}) == ErrorCode::invalid_argument);
  CHECK(code(scene.folder, {.bytes = 1 << 20, .block_bytes = 1}) == ErrorCode::invalid_argument);
  CHECK(code(scene.folder, {.bytes = 1 << 20, .queue_depth = 0}) == ErrorCode::invalid_argument);
  CHECK(std::filesystem::is_empty(scene.folder));
  std::ofstream(scene.file("plain")) << "a file";
  CHECK(code(scene.file("plain"), SpillFolderFixture::small()) == ErrorCode::invalid_argument);
  std::filesystem::create_symlink(scene.file("plain"), scene.file("kv-spill.map"));
  CHECK(code(scene.folder, SpillFolderFixture::small()) == ErrorCode::io_error);  // ELOOP
}

TEST_CASE("one that only reads takes no slot and puts nothing") {
  SpillFolderFixture scene;
  KvSpillOptions reads = {.puts = false};
  CHECK(KvSpill::open(scene.folder, reads).error().code == ErrorCode::not_found);
  const auto writer = scene.open();
  fill(*writer, scene.name_space);
  const auto reader = scene.open(reads);
  CHECK(count_right(*reader, scene.name_space) == blocks_put);
  CHECK(spill_put(*reader, scene.name_space, "new").error().code == ErrorCode::permission_denied);
  CHECK(!reader->stat()->slot);
  CHECK(reader->stat()->slots == 1);
  CHECK(reader->erase(scene.name_space, "0/1").ok());
  CHECK(!writer->length(scene.name_space, "0/1").ok());
}

TEST_CASE("a folder of another user, or on a disk that is read-only, is refused") {
  if (::geteuid() != 0) {
    TERRACE_SKIP(root, "acting as two users");
    return;
  }
  SpillFolderFixture scene;
  scene.open().reset();
  REQUIRE(::chown(scene.file("kv-spill.map").c_str(), 12345, 12345) == 0);
  const auto others = KvSpill::open(scene.folder);
  REQUIRE(!others.ok());
  CHECK(others.error().code == ErrorCode::permission_denied);
  CHECK(others.error().detail.find("user 12345") != std::string::npos);
  CHECK(KvSpill::open(scene.folder, {.puts = false}).ok());  // who is root may look at it
  SpillFolderFixture mounted;
  if (::mount("tmpfs", mounted.folder.c_str(), "tmpfs", 0, "size=1m") != 0) {
    TERRACE_SKIP_IN_PART(mount, "a file system that is read-only");
    return;
  }
  REQUIRE(::mount("tmpfs", mounted.folder.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=1m") == 0);
  const auto read_only = KvSpill::open(mounted.folder, SpillFolderFixture::small());
  CHECK(::umount(mounted.folder.c_str()) == 0);
  REQUIRE(!read_only.ok());
  CHECK(read_only.error().os_errno == EROFS);
}

TEST_CASE("a disk that is full drops blocks and goes on with the room that it has") {
  SpillFolderFixture scene;
  if (::mount("tmpfs", scene.folder.c_str(), "tmpfs", 0, "size=3m") != 0) {
    TERRACE_SKIP(mount, "a small file system");
    return;
  }
  {
    KvSpillOptions options = SpillFolderFixture::small();
    options.bytes = 16 << 20;
    const auto spill = scene.open(options);
    int right = 0;
    for (int block = 0; block < 600; ++block) {
      (void)spill_put(*spill, scene.name_space, std::to_string(block), 16'000);
      if (block % 20 == 0) (void)spill->drain();
    }
    REQUIRE(spill->drain().ok());
    for (int block = 0; block < 600; ++block) {
      const int check = spill_check(*spill, scene.name_space, std::to_string(block), 16'000);
      CHECK(check >= 0);
      right += check > 0 ? 1 : 0;
    }
    CHECK(right > 20);
    CHECK(right < 190);  // of 3 MiB
    CHECK(spill->counters().segments_reused > 0);
  }
  SpillFolderFixture tiny;
  REQUIRE(::mount("tmpfs", tiny.folder.c_str(), "tmpfs", 0, "size=64k") == 0);
  const auto none = KvSpill::open(tiny.folder, {.bytes = 64 << 20, .block_bytes = 4096});
  CHECK(::umount(tiny.folder.c_str()) == 0);
  REQUIRE(!none.ok());
  CHECK(none.error().code == ErrorCode::capacity_exhausted);
  CHECK(::umount(scene.folder.c_str()) == 0);
}

TEST_CASE("a process that may write no longer files says so, or goes on with what it has") {
  SpillFolderFixture scene;
  SpillChild no_index([&] {
    const rlimit limit{.rlim_cur = 16 << 10, .rlim_max = 16 << 10};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    const auto spill = KvSpill::open(scene.folder, SpillFolderFixture::small());
    return !spill.ok() && spill.error().code == ErrorCode::limit_exceeded ? 0 : 1;
  });
  CHECK(no_index.wait() == 0);
  SpillChild half([&] {
    const rlimit limit{.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    const auto spill = KvSpill::open(scene.folder, SpillFolderFixture::small());
    if (!spill.ok()) return 3;
    int right = 0;
    for (int block = 0; block < 300; ++block) {
      (void)spill_put(**spill, scene.name_space, std::to_string(block), 16'000);
      if (block % 20 == 0) (void)(*spill)->drain();
    }
    (void)(*spill)->drain();
    for (int block = 0; block < 300; ++block) {
      const int check = spill_check(**spill, scene.name_space, std::to_string(block), 16'000);
      if (check < 0) return 4;
      right += check;
    }
    return right > 20 && right < 70 ? 0 : 1;
  });
  CHECK(half.wait() == 0);
}

}  // namespace
}  // namespace terrace
