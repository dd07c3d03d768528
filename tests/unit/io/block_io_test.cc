// SPDX-License-Identifier: Apache-2.0
// Bulk file I/O: every cutting of a range gives the same bytes, with and without io_uring and O_DIRECT.
#include "core/os/io/block_io.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <vector>

#include "core/base/prng.h"
#include "core/base/unique_fd.h"
#include "core/os/io/block_plan.h"
#include "tests/support/skip.h"
#include "tests/unit/io/temporary_directory.h"
#include "tests/unit/tensor/aligned_memory.h"

using namespace terrace;

namespace {

std::string random_bytes(Prng& prng, size_t bytes) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(prng.next());
  return text;
}

// Cuts `memory` into random pieces, some empty, some with gaps between them, that hold `bytes` together.
std::vector<std::span<std::byte>> random_segments(Prng& prng, std::span<std::byte> memory, uint64_t bytes) {
  std::vector<std::span<std::byte>> segments;
  uint64_t slack = memory.size() - bytes;
  while (bytes > 0) {
    if (prng.chance(1, 3)) {
      const uint64_t gap = std::min<uint64_t>(slack, prng.chance(1, 2) ? prng.below(100) : 4096);
      memory = memory.subspan(gap);
      slack -= gap;
    }
    const uint64_t length = std::min<uint64_t>(bytes, prng.chance(1, 2) ? prng.below(300) : prng.below(60'000));
    segments.push_back(memory.first(length));
    memory = memory.subspan(length);
    bytes -= length;
  }
  return segments;
}

std::string gather(const std::vector<std::span<std::byte>>& segments) {
  std::string all;
  for (const auto& segment : segments)
    all.append(reinterpret_cast<const char*>(segment.data()), segment.size());
  return all;
}

BlockIoOptions random_options(Prng& prng) {
  BlockIoOptions options;
  options.queue_depth = static_cast<uint32_t>(prng.between(1, 9));
  options.block_bytes = 4096 * prng.between(1, 12);
  options.direct = prng.chance(3, 4);
  options.io_uring = prng.chance(3, 4);
  return options;
}

}  // namespace

TEST_CASE("BlockPlan: chunks cover the range once, in order, and direct ones are aligned") {
  Prng prng(11);
  AlignedMemory memory(600'000);
  for (int round = 0; round < 2000; ++round) {
    std::vector<block_plan::Segment> segments;
    uint64_t total = 0;
    for (const auto& piece : random_segments(prng, memory.span(), prng.below(200'000))) {
      segments.push_back({piece.data(), piece.size()});
      total += piece.size();
    }
    const block_plan::Geometry geometry{.block_bytes = 4096 * prng.between(1, 8),
                                        .alignment_bytes = prng.chance(3, 4) ? 4096u : 0u,
                                        .write = prng.chance(1, 2)};
    const uint64_t start = prng.chance(1, 2) ? prng.below(10'000) : 4096 * prng.below(4);
    block_plan::Planner planner(start, segments, geometry);
    REQUIRE(planner.total_bytes() == total);
    uint64_t position = start;
    while (!planner.done()) {
      const block_plan::Chunk chunk = planner.next();
      REQUIRE(chunk.bytes > 0);
      REQUIRE(chunk.offset == position);
      REQUIRE(chunk.io_offset <= chunk.offset);
      REQUIRE(chunk.io_offset + chunk.io_bytes >= chunk.offset + chunk.bytes);
      REQUIRE(chunk.io_bytes <= geometry.block_bytes);
      if (chunk.kind != block_plan::Kind::buffered) {
        REQUIRE(geometry.alignment_bytes == 4096);
        REQUIRE(chunk.io_offset % 4096 == 0);
        REQUIRE(chunk.io_bytes % 4096 == 0);
      }
      if (chunk.kind == block_plan::Kind::straight) {
        REQUIRE(reinterpret_cast<uintptr_t>(planner.address(chunk)) % 4096 == 0);
      }
      if (geometry.write || chunk.kind != block_plan::Kind::staged) {
        REQUIRE(chunk.io_offset == chunk.offset);
        REQUIRE(chunk.io_bytes == chunk.bytes);
      }
      uint64_t pieces = 0;
      planner.for_each_piece(chunk, [&](std::byte*, uint64_t at, uint64_t bytes) {
        REQUIRE(at + bytes <= chunk.io_bytes);
        pieces += bytes;
      });
      REQUIRE(pieces == chunk.bytes);
      position += chunk.bytes;
    }
    REQUIRE(position == start + total);
  }
}

TEST_CASE("read_blocks and write_blocks: any range and any memory, on disk and on tmpfs") {
  Prng prng(5);
  for (const char* parent : {"", "/dev/shm"}) {
    if (*parent != '\0' && ::access(parent, W_OK) != 0) continue;
    const TemporaryDirectory directory(parent);
    AlignedMemory memory(700'000);
    uint64_t straight = 0;
    uint64_t staged = 0;
    for (int round = 0; round < 150; ++round) {
      const std::string before = random_bytes(prng, prng.between(1, 300'000));
      const UniqueFd file(::open(directory.write("f", before).c_str(), O_RDWR | O_CLOEXEC));
      const uint64_t offset =
          std::min<uint64_t>(before.size(), prng.chance(1, 2) ? 4096 * prng.below(8) : prng.below(9000));
      const uint64_t bytes =
          prng.chance(1, 2) ? before.size() - offset : prng.below(before.size() - offset + 1);
      const auto segments = random_segments(prng, memory.span(), bytes);
      BlockIoOptions options = random_options(prng);
      uint64_t progress = 0;
      options.progress = [&](uint64_t done, uint64_t total) {
        REQUIRE(total == bytes);
        REQUIRE(done >= progress);
        REQUIRE(done <= total);
        progress = done;
      };
      Result<BlockIoReport> report = read_blocks(file.get(), "f", offset, segments, options);
      REQUIRE_MESSAGE(report.ok(), report.error().to_string());
      REQUIRE(gather(segments) == before.substr(offset, bytes));
      REQUIRE(progress == bytes);
      REQUIRE(report->straight_bytes + report->staged_bytes + report->buffered_bytes == bytes);
      straight += report->straight_bytes;
      staged += report->staged_bytes;

      for (std::byte& byte : memory.span()) byte = static_cast<std::byte>(prng.next());
      std::vector<std::span<const std::byte>> sources(segments.begin(), segments.end());
      progress = 0;
      report = write_blocks(file.get(), "f", offset, sources, options);
      REQUIRE_MESSAGE(report.ok(), report.error().to_string());
      std::string expected = before;
      REQUIRE(read_file(directory.file("f")) == expected.replace(offset, bytes, gather(segments)));
      straight += report->straight_bytes;
      staged += report->staged_bytes;
    }
    if (*parent == '\0' && straight + staged == 0)
      MESSAGE("O_DIRECT was not tested: the file system of /tmp has none");
  }
}

TEST_CASE("read_blocks: a file that ends early is an error that says where") {
  const TemporaryDirectory directory;
  const UniqueFd file(::open(directory.write("short", std::string(10'000, 'x')).c_str(), O_RDONLY | O_CLOEXEC));
  AlignedMemory memory(20'000);
  const std::span<std::byte> all[] = {memory.span()};
  for (const bool io_uring : {true, false}) {
    for (const bool direct : {true, false}) {
      const auto result = read_blocks(file.get(), "short", 0, all, {.direct = direct, .io_uring = io_uring});
      REQUIRE_FALSE(result.ok());
      CHECK(result.error().code == ErrorCode::io_error);
      CHECK(result.error().detail.find("short: the file ended before byte 1") != std::string::npos);
    }
  }
}

TEST_CASE("block I/O: failures of the kernel keep their errno") {
  const TemporaryDirectory directory;
  AlignedMemory memory(8192);
  const std::span<std::byte> all[] = {memory.span()};
  const std::span<const std::byte> source[] = {memory.span()};
  const UniqueFd write_only(::open(directory.write("w", std::string(8192, 'w')).c_str(), O_WRONLY | O_CLOEXEC));
  for (const bool io_uring : {true, false}) {
    CHECK(
        read_blocks(write_only.get(), "w", 0, all, {.direct = false, .io_uring = io_uring}).error().os_errno ==
        EBADF);
    const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
    const auto refused = write_blocks(full.get(), "full", 0, source, {.io_uring = io_uring}).error();
    CHECK(refused.code == ErrorCode::capacity_exhausted);
    CHECK(refused.os_errno == ENOSPC);
  }
}

TEST_CASE("block I/O: a limit in the middle of a write is reported, not looped on") {
  const TemporaryDirectory directory;
  const std::string path = directory.write("limited", "");
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit limit{10'000, 10'000};
    ::signal(SIGXFSZ, SIG_IGN);
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
    const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    AlignedMemory memory(20'000);
    const std::span<const std::byte> source[] = {memory.span()};
    const auto result = write_blocks(file.get(), "limited", 0, source, {.io_uring = false});
    ::_exit(!result.ok() && result.error().os_errno == EFBIG ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("block I/O: cancelling stops with nothing in flight") {
  const TemporaryDirectory directory;
  const std::string contents(4 << 20, 'c');
  const UniqueFd file(::open(directory.write("big", contents).c_str(), O_RDONLY | O_CLOEXEC));
  AlignedMemory memory(contents.size());
  const std::span<std::byte> all[] = {memory.span()};
  uint64_t seen = 0;
  BlockIoOptions options{.queue_depth = 4, .block_bytes = 64 << 10};
  options.progress = [&](uint64_t done, uint64_t) { seen = done; };
  options.cancelled = [&] { return seen >= 512 << 10; };
  const auto result = read_blocks(file.get(), "big", 0, all, options);
  REQUIRE_FALSE(result.ok());
  CHECK(result.error().code == ErrorCode::cancelled);
  CHECK(seen < contents.size());
}

TEST_CASE("block I/O: options out of bounds are refused") {
  for (const BlockIoOptions& options :
       {BlockIoOptions{.queue_depth = 0}, BlockIoOptions{.queue_depth = 1025}, BlockIoOptions{.block_bytes = 0},
        BlockIoOptions{.block_bytes = 5000}, BlockIoOptions{.block_bytes = 128 << 20}}) {
    CHECK(read_blocks(0, "f", 0, {}, options).error().code == ErrorCode::invalid_argument);
  }
  CHECK(read_blocks(0, "f", UINT64_MAX, {}, {}).error().code == ErrorCode::invalid_argument);
}

TEST_CASE("block I/O: where a seccomp filter refuses io_uring, pread does the work and the report says why") {
  const TemporaryDirectory directory;
  const std::string contents(300'000, 's');
  const std::string path = directory.write("f", contents);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{.len = static_cast<unsigned short>(std::size(filter)), .filter = filter};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      ::_exit(77);
    }
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    AlignedMemory memory(contents.size());
    const std::span<std::byte> all[] = {memory.span()};
    const auto result = read_blocks(file.get(), "f", 0, all);
    if (!result.ok() || result->io_uring) ::_exit(1);
    if (result->io_uring_reason.find("io_uring_setup was refused") == std::string::npos) ::_exit(2);
    for (const std::byte byte : memory.span()) {
      if (byte != std::byte{'s'}) ::_exit(3);
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) {
    TERRACE_SKIP(seccomp, "this machine does not let a process set a seccomp filter");
  } else {
    CHECK(WEXITSTATUS(status) == 0);
  }
}
