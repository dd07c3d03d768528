// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_start.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "allocator/supply/proc.h"
#include "allocator/supply/protocol.h"
#include "cli/run/run_budget.h"
#include "cli/terminal/manager_place.h"
#include "core/base/limits.h"
#include "core/os/userfaultfd.h"

namespace terrace::cli {
namespace {

// In the place of a manager that cannot be reached, with --fallback: no lease is ever granted.
class NoSession final : public Session {
 public:
  explicit NoSession(Error why) : why_(std::move(why)) {}
  Result<std::shared_ptr<Lease>> grant(const LeaseRequest&) override {
    return Error{.code = ErrorCode::capacity_exhausted, .where = "terrace run", .detail = why_.detail};
  }
  using Session::attach;
  Result<std::shared_ptr<Lease>> attach(LeaseId, const std::string&, LeaseAccess) override { return why_; }
  Result<std::vector<LeaseInfo>> leases() override { return why_; }
  Result<std::vector<PoolInfo>> pools() override { return why_; }
  Result<UniqueFd> userfaultfd_device() override { return why_; }
  std::string tenant() const override { return {}; }
  bool connected() const override { return false; }
  void on_notice(LeaseNoticeHandler) override {}

 private:
  Error why_;
};

// How long a program's request for a lease waits when the manager goes away. Later ones in the same outage are
// answered at once.
constexpr uint64_t first_wait_ns = 10 * ns_per_s;

Error no_room(const std::string& detail) {
  return Error{.code = ErrorCode::capacity_exhausted, .where = "terrace run", .detail = detail};
}

// The pool that leases come from. One that does not exist, or none that could be meant, is said before the
// program starts.
Result<PoolInfo> find_pool(Session& session, const RunArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(std::vector<PoolInfo> pools, session.pools());
  std::string names;
  for (const PoolInfo& pool : pools) {
    if (pool.name == arguments.pool) return pool;
    names += (names.empty() ? "" : ", ") + pool.name;
  }
  if (!arguments.pool.empty())
    return Error{
        .code = ErrorCode::not_found,
        .where = "terrace run",
        .detail = "there is no pool '" + arguments.pool + "'" + (names.empty() ? "" : "; there is " + names)};
  if (pools.empty())
    return Error{.code = ErrorCode::not_found,
                 .where = "terrace run",
                 .detail = "there is no pool yet; make one with 'terrace pool create'"};
  if (pools.size() == 1) return pools[0];
  if (arguments.cxl_given)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "terrace run",
                 .detail = "there are several pools (" + names + "); choose one with --pool"};
  const PoolInfo* best = roomiest(pools);
  if (best != nullptr) return *best;
  return no_room("none of the pools (" + names + ") has memory left");
}

// The session and the pool; the CXL size where it was left open.
Result<std::unique_ptr<Session>> connect(const Context& context, RunArguments* arguments) {
  TERRACE_RETURN_IF_ERROR(on_this_machine(context, "terrace run"));
  SessionOptions options;
  options.socket_path = context.socket_path;
  options.call_timeout_ns = first_wait_ns;
  options.client_name = "terrace run " + arguments->command.front();
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::connect(options));
  TERRACE_ASSIGN_OR_RETURN(const PoolInfo pool, find_pool(*session, *arguments));
  if (!arguments->cxl_given) {
    arguments->cxl_bytes = default_cxl_bytes(pool);
    if (arguments->cxl_bytes == 0) return no_room("pool " + pool.name + " has no memory left");
  }
  arguments->pool = pool.name;
  return session;
}

}  // namespace

void say(const std::string& text) {
  std::string line = "terrace: " + text + "\n";
  std::fputs(line.c_str(), stderr);
}

Result<std::unique_ptr<Session>> connect_for_run(const Context& context, RunArguments* arguments) {
  const bool wanted = arguments->cxl_given || !arguments->pool.empty();
  if (!arguments->ddr_given) arguments->ddr_bytes = default_ddr_bytes(available_memory_bytes());
  if (arguments->cxl_given && arguments->cxl_bytes == 0) {
    arguments->fallback = arguments->fallback || !arguments->ddr_given;
    return std::unique_ptr<Session>(new NoSession(
        Error{.code = ErrorCode::unavailable, .where = "terrace run", .detail = "no CXL budget"}));
  }
  auto session = connect(context, arguments);
  if (!session.ok() && !arguments->fallback && (wanted || arguments->ddr_bytes == 0)) return session.error();
  arguments->fallback = arguments->fallback || !arguments->ddr_given;
  if (session.ok()) return session;
  arguments->pool.clear();
  say("no CXL memory for this run" +
      std::string(arguments->fallback ? ", what does not fit into its DDR budget goes to plain malloc: "
                                      : ", its DDR budget is all it has: ") +
      session.error().detail);
  return std::unique_ptr<Session>(new NoSession(session.error()));
}

std::string why_still(Session& session, const RunArguments& arguments, UniqueFd* device) {
  if (arguments.policy == "static") return "the policy is static";
  if (arguments.cxl_bytes == 0) return "there is no CXL budget";
  if (arguments.ddr_bytes < limits::granule_bytes)
    return "the DDR budget is below a granule (" + format_size(limits::granule_bytes) + ")";
  // The device, also where this process has the right itself: the program may have given its own away.
  auto given = session.userfaultfd_device();
  if (given.ok()) {
    *device = std::move(*given);
    return {};
  }
  device->reset(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  if (device->valid() || os::open_userfaultfd(-1, 0).ok()) return {};
  return given.error().detail;
}

std::vector<std::string> environment_for(const std::string& library, const std::string& socket_path,
                                         uint64_t min_size, uint64_t mmap_from) {
  std::vector<std::string> environment;
  std::string preload = "LD_PRELOAD=" + library;
  for (char** at = environ; *at != nullptr; ++at) {
    std::string_view entry = *at;
    if (entry.rfind("LD_PRELOAD=", 0) == 0) {
      if (entry.size() > 11) preload += ":" + std::string(entry.substr(11));
    } else if (entry.rfind(std::string(supply::socket_variable) + "=", 0) != 0 &&
               entry.rfind(std::string(supply::min_size_variable) + "=", 0) != 0 &&
               entry.rfind(std::string(supply::mmap_variable) + "=", 0) != 0 &&
               entry.rfind(std::string(supply::seccomp_variable) + "=", 0) != 0) {
      environment.emplace_back(entry);
    }
  }
  environment.push_back(preload);
  environment.push_back(std::string(supply::socket_variable) + "=" + socket_path);
  environment.push_back(std::string(supply::min_size_variable) + "=" + std::to_string(min_size));
  environment.push_back(std::string(supply::mmap_variable) + "=" + std::to_string(mmap_from));
  environment.push_back(std::string(supply::seccomp_variable) + "=" +
                        std::to_string(supply::seccomp_filters()));
  return environment;
}

}  // namespace terrace::cli
