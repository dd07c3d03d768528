// SPDX-License-Identifier: Apache-2.0
// `terrace pool compact`: a longer free run, made by moving leases that may be moved.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/pools/pool_verbs.h"
#include "cli/show/describe.h"
#include "cli/show/preview.h"
#include "cli/terminal/confirm.h"

namespace terrace::cli {
namespace {

struct CompactArguments {
  std::string pool;
  uint64_t run_bytes = 0;
  uint64_t timeout_ns = 0;
  bool wait = false;
  bool status = false;
  bool end = false;
  bool dry_run = false;
};

std::string describe_left(const CompactionStatus& compaction) {
  return describe_moves(compaction->getLeftBytes(), compaction->getMoves());
}

std::string compaction_text(const std::string& pool, const CompactionStatus& compaction) {
  if (!compaction->getActive() && compaction->getDevice().size() == 0)
    return "pool " + printable(pool) + " has no compaction under way\n";
  const std::string window = exact_size(compaction->getLength()) + " on " +
                             printable(str(compaction->getDevice())) + " at " +
                             exact_size(compaction->getOffset());
  if (!compaction->getActive()) return "the run is free: " + window + "\n";
  std::string text = "clearing " + window + ": " + printable(describe_left(compaction)) + "\n";
  if (compaction->getMoves().size() != 0) text += move_table(compaction->getMoves());
  return text;
}

// Without --run: as long a run as there could be if all that is free lay together on one device.
Result<uint64_t> default_run(AdminClient& client, const PoolStatus& pool) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DeviceStatus> devices, client.devices());
  uint64_t most = 0;
  for (const DeviceStatus& device : devices) {
    if (device->getPool() == pool->getName() && device->getState() == rpc::DeviceState::IN_SERVICE &&
        device->getPresent())
      most = std::max(most, device->getFreeBytes());
  }
  if (most == 0) {
    return Error{.code = ErrorCode::capacity_exhausted,
                 .where = "pool compact",
                 .detail = "nothing is free on the devices of pool '" + str(pool->getName()) +
                           "' that are in service: there is no room to move anything"};
  }
  return most;
}

// The run is there already: nothing had to move.
bool run_is_free(const CompactionStatus& compaction) {
  return !compaction->getActive();
}

Status wait_for_run(Context& context, AdminClient& client, const CompactArguments& arguments,
                    CompactionStatus compaction) {
  StatusLines lines(context);
  const uint64_t timeout_ns = arguments.timeout_ns == 0 ? 3600 * ns_per_s : arguments.timeout_ns;
  for (Pace pace(timeout_ns); !run_is_free(compaction);) {
    lines.say(describe_left(compaction));
    if (!pace.again()) {
      const Error error{.code = ErrorCode::busy,
                        .where = "pool compact",
                        .detail = "no free run of " + exact_size(arguments.run_bytes) + " in pool '" +
                                  arguments.pool + "' after " + format_duration(timeout_ns) + ": " +
                                  describe_left(compaction)};
      fail_with(context, error, "compaction", to_json(compaction), compaction_text(arguments.pool, compaction));
      return {};
    }
    TERRACE_ASSIGN_OR_RETURN(compaction, client.compact(arguments.pool, 0, 0));
  }
  // The plan also ends by its deadline or by 'compact --end': only a run that is there is success.
  TERRACE_ASSIGN_OR_RETURN(const PoolStatus pool, find_pool(client, arguments.pool));
  if (pool->getLargestFreeBytes() < arguments.run_bytes) {
    const Error error{.code = ErrorCode::busy,
                      .where = "pool compact",
                      .detail = "the compaction ended before the run was free; the largest free run is " +
                                exact_size(pool->getLargestFreeBytes()) + " of the wanted " +
                                exact_size(arguments.run_bytes)};
    fail_with(context, error, "compaction", to_json(compaction), "");
    return {};
  }
  if (context.json) {
    print_json({{"compaction", to_json(compaction)}, {"pool", to_json(pool)}});
  } else {
    print_text("pool " + printable(str(pool->getName())) + ": the largest free run is " +
               exact_size(pool->getLargestFreeBytes()) + "\n");
  }
  return {};
}

Status compact_pool(Context& context, CompactArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const PoolStatus pool, find_pool(*client, arguments.pool));
  if (arguments.end) {
    TERRACE_RETURN_IF_ERROR(client->end_compaction(arguments.pool));
    if (context.json) {
      print_json({{"ended", arguments.pool}});
    } else {
      print_text("no compaction of pool " + printable(arguments.pool) + " goes on; what has moved stays\n");
    }
    return {};
  }
  if (!arguments.status && arguments.run_bytes == 0) {
    TERRACE_ASSIGN_OR_RETURN(arguments.run_bytes, default_run(*client, pool));
  }
  if (arguments.dry_run) {
    TERRACE_ASSIGN_OR_RETURN(const PreviewStatus preview,
                             client->preview_compaction(arguments.pool, arguments.run_bytes));
    show_preview(context, preview);
    return {};
  }
  const uint64_t run_bytes = arguments.status ? 0 : arguments.run_bytes;
  TERRACE_ASSIGN_OR_RETURN(const CompactionStatus compaction,
                           client->compact(arguments.pool, run_bytes, arguments.timeout_ns));
  if (arguments.wait) return wait_for_run(context, *client, arguments, compaction);
  if (context.json) {
    print_json({{"compaction", to_json(compaction)}});
  } else if (!arguments.status && run_is_free(compaction)) {
    print_text("pool " + printable(arguments.pool) + " has a free run of " + exact_size(arguments.run_bytes) +
               " already\n");
  } else {
    print_text(compaction_text(arguments.pool, compaction));
  }
  return {};
}

}  // namespace

void add_pool_compact_verb(Command pool, Context& context) {
  const auto arguments = std::make_shared<CompactArguments>();
  Command compact =
      pool.add_subcommand("compact", "Make a longer free run by moving leases that were granted movable");
  compact.add_option("name", arguments->pool, "The pool's name").required();
  Option run = add_size_option(compact, "--run", arguments->run_bytes,
                               "How long a run (default: what is free on the emptiest device)");
  Option dry_run = compact.add_flag("--dry-run", arguments->dry_run, dry_run_help);
  Option wait =
      compact.add_flag("--wait", arguments->wait, "Until it is there, with lines that say how it stands");
  Option timeout = add_duration_option(compact, "--timeout", arguments->timeout_ns,
                                       "How long it is tried, --wait or not (default and most: 1h)");
  Option status = compact.add_flag("--status", arguments->status, "Only say how the one under way stands");
  Option end = compact.add_flag("--end", arguments->end, "Give the one under way up");
  dry_run.excludes(wait).excludes(timeout);
  status.excludes(run).excludes(wait).excludes(timeout).excludes(end).excludes(dry_run);
  end.excludes(run).excludes(wait).excludes(timeout).excludes(dry_run);
  on_verb(compact, context, [&context, arguments] { return compact_pool(context, *arguments); });
}

}  // namespace terrace::cli
