// SPDX-License-Identifier: Apache-2.0
// Helper processes: what they answer, and that none outlives its bounds or those who wait for it. This program is its
// own helper: act() comes before main().
#include "daemon/helper/helper.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/base/clock.h"
#include "core/base/unique_fd.h"
#include "core/base/units.h"

using namespace terrace;
using namespace terrace::daemon;

namespace {

std::string read_all(int fd) {
  std::string text;
  char part[4096];
  for (ssize_t got; (got = ::read(fd, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(got));
  return text;
}

std::string open_descriptors() {
  std::string text;
  for (int fd = 0; fd < 64; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) text += std::to_string(fd) + " ";
  return text;
}

Result<std::string> work(const std::string& job, const std::string& told) {
  if (job == "echo") return told + ":" + read_all(0);
  if (job == "descriptors") return open_descriptors();
  if (job == "nice") return std::to_string(::getpriority(PRIO_PROCESS, 0));
  if (job == "large") return std::string(std::strtoull(told.c_str(), nullptr, 10), 'x');
  if (job == "refuse")
    return Error{.code = ErrorCode::invalid_argument, .where = "test", .detail = "line 3: no number"};
  if (job == "abort") std::abort();
  if (job == "silent") ::_exit(7);
  if (job == "hoard") {
    const size_t bytes = 256 * mib;
    char* memory = static_cast<char*>(std::malloc(bytes));
    std::memset(memory, 1, bytes);
    tell_progress(std::to_string(memory[bytes / 2]));
  }
  if (job == "progress") tell_progress("half of it");
  if (job == "pid") tell_progress(std::to_string(::getpid()));
  for (;;) ::pause();
}

__attribute__((constructor)) void act(int argc, char** argv) {
  if (argc < 3 || std::string(argv[1]) != helper_flag) return;
  begin_helper();
  ::_exit(answer_helper(work(argv[2], argc > 3 ? argv[3] : "")));
}

constexpr HelperBounds usual{.time_ns = 60 * ns_per_s, .memory_bytes = gib, .answer_bytes = mib};

Result<std::string> ask(std::vector<std::string> words, HelperBounds bounds = usual, int input = -1) {
  HelperWatch watch;
  return run_helper(words, input, bounds, watch);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("Helper: it reads what it is given and answers it, zeros and all") {
  const UniqueFd input(::memfd_create("input", MFD_CLOEXEC));
  const std::string text("a\0b", 3);
  REQUIRE(::write(input.get(), text.data(), text.size()) == 3);
  REQUIRE(::lseek(input.get(), 0, SEEK_SET) == 0);
  CHECK(ask({"echo", "x"}, usual, input.get()).value() == "x:" + text);
  CHECK(ask({"echo", "x"}).value() == "x:");
}

TEST_CASE("Helper: it has the four descriptors it is given and no other, and is as nice as it should be") {
  const UniqueFd leaked(::open("/dev/null", O_RDONLY));  // without O_CLOEXEC
  CHECK(ask({"descriptors"}).value() == "0 1 2 3 ");
  HelperBounds kind = usual;
  kind.nice = 19;
  CHECK(ask({"nice"}, kind).value() == "19");
}

TEST_CASE("Helper: a long answer comes whole, one that is too long is an error") {
  CHECK(ask({"large", "1000000"}).value().size() == 1'000'000);
  const auto refused = ask({"large", "3000000"});
  CHECK(refused.error().code == ErrorCode::limit_exceeded);
  CHECK(contains(refused.error().detail, "1 MiB"));
}

TEST_CASE("Helper: its refusals come as they were said; an end without an answer is told") {
  const auto refused = ask({"refuse"});
  CHECK(refused.error().code == ErrorCode::invalid_argument);
  CHECK(refused.error().detail == "line 3: no number");
  const auto aborted = ask({"abort"});
  CHECK(aborted.error().code == ErrorCode::io_error);
  CHECK(contains(aborted.error().detail, "signal 6"));
  CHECK(contains(ask({"silent"}).error().detail, "status 7"));
}

TEST_CASE("Helper: one that takes too long, or too much memory, is ended") {
  HelperBounds bounds = usual;
  bounds.time_ns = 300 * ns_per_ms;
  const uint64_t began = SystemClock().now_ns();
  CHECK(ask({"hang"}, bounds).error().code == ErrorCode::limit_exceeded);
  CHECK(SystemClock().now_ns() - began < 20 * ns_per_s);
  bounds = usual;
  bounds.memory_bytes = 128 * mib;
  const auto hoarded = ask({"hoard"}, bounds);
  CHECK(hoarded.error().code == ErrorCode::limit_exceeded);
  CHECK(contains(hoarded.error().detail, "128 MiB"));
}

TEST_CASE("Helper: what is said of its progress is seen, and cancelling ends it") {
  HelperWatch watch;
  Result<std::string> answer = std::string();
  std::thread waiting([&] { answer = run_helper({"pid"}, -1, usual, watch); });
  while (watch.progress().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const pid_t pid = static_cast<pid_t>(std::stol(watch.progress()));
  CHECK(::kill(pid, 0) == 0);
  watch.cancel();
  waiting.join();
  CHECK(answer.error().code == ErrorCode::cancelled);
  CHECK(::kill(pid, 0) != 0);  // ended and reaped
}

TEST_CASE("Helper: nobody who is cancelled before it begins waits for it") {
  HelperWatch watch;
  watch.cancel();
  CHECK(run_helper({"hang"}, -1, usual, watch).error().code == ErrorCode::cancelled);
}
