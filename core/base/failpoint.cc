// SPDX-License-Identifier: Apache-2.0
#include "core/base/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace terrace {
namespace {

constexpr size_t failpoint_count = static_cast<size_t>(Failpoint::count);

constexpr FailpointInfo infos[] = {
#define TERRACE_FAILPOINT_INFO(name, process, leaves) {Failpoint::name, #name, #process, leaves},
    TERRACE_FAILPOINT_LIST(TERRACE_FAILPOINT_INFO)
#undef TERRACE_FAILPOINT_INFO
};

enum class Action : uint8_t { none, crash, error, delay };

struct Armed {
  std::atomic<Action> action{Action::none};
  uint64_t from_hit = 1;
  uint64_t argument = 0;  // errno, or milliseconds
  std::atomic<uint64_t> hits{0};
};

std::array<Armed, failpoint_count>& armed() {
  static std::array<Armed, failpoint_count> table;
  return table;
}

Error refused(std::string_view item, const char* why) {
  return Error{.code = ErrorCode::invalid_argument,
               .where = "arm_failpoints",
               .detail = "TERRACE_FAILPOINTS item '" + std::string(item) + "': " + why};
}

bool parse_number(std::string_view text, uint64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

int errno_of(std::string_view name) {
  for (int number = 1; number < 134; ++number) {
    const char* known = strerrorname_np(number);
    if (known != nullptr && name == known) return number;
  }
  return 0;
}

Status arm_one(std::string_view item) {
  const size_t equals = item.find('=');
  if (equals == std::string_view::npos) return refused(item, "write it as name=action");
  const std::string_view name = item.substr(0, equals);
  std::string_view action = item.substr(equals + 1);
  uint64_t from_hit = 1;
  if (const size_t at = action.find('@'); at != std::string_view::npos) {
    if (!parse_number(action.substr(at + 1), from_hit) || from_hit == 0)
      return refused(item, "what follows '@' must be a hit count from 1");
    action = action.substr(0, at);
  }
  for (const FailpointInfo& info : infos) {
    if (info.name != name) continue;
    Armed& point = armed()[static_cast<size_t>(info.id)];
    point.from_hit = from_hit;
    if (action == "crash") {
      point.action = Action::crash;
    } else if (action.starts_with("error:")) {
      point.argument = static_cast<uint64_t>(errno_of(action.substr(6)));
      if (point.argument == 0) return refused(item, "unknown errno name; write it as error:ENOSPC");
      point.action = Action::error;
    } else if (action.starts_with("delay:")) {
      if (!parse_number(action.substr(6), point.argument)) return refused(item, "delay needs milliseconds");
      point.action = Action::delay;
    } else {
      return refused(item, "the action must be crash, error:ERRNO or delay:MS");
    }
    return {};
  }
  std::string known = "unknown failpoint; known are";
  for (const FailpointInfo& info : infos) (known += ' ') += info.name;
  return refused(item, known.c_str());
}

}  // namespace

std::span<const FailpointInfo> failpoint_list() {
  return infos;
}

bool failpoints_enabled() {
#if defined(TERRACE_FAILPOINTS_ENABLED)
  return true;
#else
  return false;
#endif
}

Status arm_failpoints(std::string_view specification) {
  if (specification.empty()) return {};
  if (!failpoints_enabled()) {
    return Error{.code = ErrorCode::unsupported,
                 .where = "arm_failpoints",
                 .detail = "TERRACE_FAILPOINTS is set, but this build has none; use the dev or sim preset"};
  }
  while (!specification.empty()) {
    const size_t comma = specification.find(',');
    TERRACE_RETURN_IF_ERROR(arm_one(specification.substr(0, comma)));
    specification = comma == std::string_view::npos ? std::string_view{} : specification.substr(comma + 1);
  }
  return {};
}

Status arm_failpoints_from_environment() {
  const char* value = std::getenv("TERRACE_FAILPOINTS");
  return value == nullptr ? Status{} : arm_failpoints(value);
}

int hit_failpoint(Failpoint id) {
  Armed& point = armed()[static_cast<size_t>(id)];
  const Action action = point.action.load(std::memory_order_acquire);  // acquire: pairs with arm_one()
  if (action == Action::none) return 0;
  const uint64_t hit = point.hits.fetch_add(1, std::memory_order_relaxed) + 1;
  if (hit < point.from_hit) return 0;
  switch (action) {
    case Action::crash: {
      std::string line = "failpoint crash: ";
      line += infos[static_cast<size_t>(id)].name;
      line += '\n';
      [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
      ::kill(::getpid(), SIGKILL);
      for (;;) ::pause();
    }
    case Action::error: return static_cast<int>(point.argument);
    case Action::delay: std::this_thread::sleep_for(std::chrono::milliseconds(point.argument)); return 0;
    case Action::none: break;
  }
  return 0;
}

}  // namespace terrace
