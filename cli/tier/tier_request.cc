// SPDX-License-Identifier: Apache-2.0
#include "cli/tier/tier_request.h"

#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include "cli/terminal/verb.h"
#include "cli/tier/tier_describe.h"
#include "tiering/policy/policy.h"

namespace terrace::cli {
namespace {

using layout::TierAnswer;
using layout::TierRange;
using Moment = std::chrono::steady_clock::time_point;

constexpr auto look_pause = std::chrono::milliseconds(5);
// Turns between commands: closing the descriptor gives it back.
Status take_turn(const TierPageFile& file, const std::string& title, Moment until) {
  while (::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      return os_error(errno, tier_where, "cannot lock " + file.path());
    if (std::chrono::steady_clock::now() >= until) {
      return Error{.code = ErrorCode::busy,
                   .where = tier_where,
                   .detail = "another command is asking " + title + "; wait for it, or look with `fuser " +
                             file.path() + "`"};
    }
    std::this_thread::sleep_for(look_pause);
  }
  return {};
}

// The range as it is now: another may have taken its place in the page since it was looked at.
Result<TierRangeView> same_range(const TierPageFile& file, const TierPageView& page,
                                 const TierRangeView& range) {
  TERRACE_ASSIGN_OR_RETURN(TierPageView now, file.read());
  for (TierRangeView& one : now.ranges)
    if (one.index == range.index && one.name == range.name && one.numbers.base == range.numbers.base)
      return std::move(one);
  return Error{.code = ErrorCode::not_found,
               .where = tier_where,
               .detail = page.title() + " has given the range " + range.name + " up meanwhile"};
}

Status write_request(TierPageFile& file, const TierRangeView& range, const TierRequest& request,
                     uint32_t number) {
  const uint32_t index = range.index;
  const bool paused = request.paused.value_or(range.state == layout::TierState::paused);
  const uint64_t ddr = request.ddr_bytes_max.value_or(UINT64_MAX);
  const uint64_t copy = request.copy_bytes_per_s_max.value_or(UINT64_MAX);
  char policy[sizeof TierRange{}.wanted_policy] = "";
  std::memcpy(policy, request.policy.data(), std::min(request.policy.size(), sizeof policy - 1));
  TERRACE_RETURN_IF_ERROR(file.store(index, offsetof(TierRange, wanted_paused), paused ? 1 : 0));
  TERRACE_RETURN_IF_ERROR(file.store_bytes(index, offsetof(TierRange, wanted_ddr_bytes_max), &ddr, sizeof ddr));
  TERRACE_RETURN_IF_ERROR(
      file.store_bytes(index, offsetof(TierRange, wanted_copy_bytes_per_s_max), &copy, sizeof copy));
  TERRACE_RETURN_IF_ERROR(file.store_bytes(index, offsetof(TierRange, wanted_policy), policy, sizeof policy));
  return file.store(index, offsetof(TierRange, request), number);  // last: now it counts
}

Error ended(const std::string& title) {
  return {.code = ErrorCode::not_found, .where = tier_where, .detail = title + " ended meanwhile"};
}

Error no_answer(const TierPlaces& places, const TierPageView& page, uint64_t wait_ns) {
  const bool stopped = process_of(places, page) == ProcessState::stopped;
  const std::string pid = std::to_string(page.pid);
  return {
      .code = ErrorCode::unavailable,
      .where = tier_where,
      .detail = page.title() + " did not answer within " + format_duration(wait_ns) + ": " +
                (stopped ? "it is stopped; `kill -CONT " + pid + "` lets it go on"
                         : "its engine makes no rounds; look at it with `cat /proc/" + pid + "/task/*/stat`") +
                ". What was asked for is done once it comes round"};
}

Status meaning_of(uint32_t answer, const TierPageView& page, const TierRangeView& range,
                  const TierRequest& request) {
  const std::string title = page.title() + " " + range.name;
  const auto refused = [](ErrorCode code, std::string detail) {
    return Error{.code = code, .where = tier_where, .detail = std::move(detail)};
  };
  switch (static_cast<TierAnswer>(answer)) {
    case TierAnswer::done: return {};
    case TierAnswer::unknown_policy:
      return refused(ErrorCode::invalid_argument,
                     page.title() + " has no policy '" + request.policy +
                         "': it runs with another build than this terrace, which has " + policy_names());
    case TierAnswer::bad_value:
      return refused(ErrorCode::invalid_argument,
                     title + " does not take " + describe_request(request) + ": of DDR it can have " +
                         format_size(range.numbers.bytes) +
                         " at most, its size; and where one budget is divided between the ranges of a process, "
                         "none can be set for one of them");
    case TierAnswer::refused:
      return refused(ErrorCode::unsupported, title + " migrates nothing: " + explain_state(range).text);
  }
  return refused(ErrorCode::corrupt, page.title() + " answered " + std::to_string(answer) +
                                         ", which means nothing; nothing is known");
}

}  // namespace

std::string policy_names() {
  std::string names;
  for (const tiering::PolicyEntry& entry : tiering::policies())
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

Status check_policy(const std::string& name) {
  if (tiering::find_policy(name) != nullptr) return {};
  std::vector<std::string> known;
  for (const tiering::PolicyEntry& entry : tiering::policies()) known.emplace_back(entry.name);
  const std::string near = did_you_mean(name, known);
  return Error{.code = ErrorCode::invalid_argument,
               .where = tier_where,
               .detail = "there is no policy '" + name + "'; " +
                         (near.empty() ? "there are " + policy_names() : "did you mean '" + near + "'?")};
}

Status ask_tier_engine(const TierPlaces& places, const TierPageView& page, const TierRangeView& range,
                       const TierRequest& request, uint64_t wait_ns) {
  const Moment until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(wait_ns);
  TERRACE_ASSIGN_OR_RETURN(TierPageFile file, open_tier_page(places, page, TierAccess::write));
  TERRACE_RETURN_IF_ERROR(take_turn(file, page.title(), until));
  TERRACE_ASSIGN_OR_RETURN(const TierRangeView now, same_range(file, page, range));
  const uint32_t index = range.index;
  TERRACE_ASSIGN_OR_RETURN(const uint32_t before, file.load(index, offsetof(TierRange, request)));
  const uint32_t number = before + 1;
  TERRACE_RETURN_IF_ERROR(write_request(file, now, request, number));
  for (int looks = 1;; ++looks) {
    TERRACE_ASSIGN_OR_RETURN(const uint32_t applied, file.load(index, offsetof(TierRange, applied)));
    if (applied == number) break;
    constexpr int looks_at_process = 20;  // now and then: it costs a file of /proc
    if (looks % looks_at_process == 0) {
      const ProcessState state = process_of(places, page);
      if (state == ProcessState::gone || state == ProcessState::other) return ended(page.title());
    }
    if (std::chrono::steady_clock::now() >= until) return no_answer(places, page, wait_ns);
    std::this_thread::sleep_for(look_pause);
  }
  TERRACE_ASSIGN_OR_RETURN(const uint32_t answer, file.load(index, offsetof(TierRange, answer)));
  return meaning_of(answer, page, now, request);
}

}  // namespace terrace::cli
