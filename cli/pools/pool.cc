// SPDX-License-Identifier: Apache-2.0
// `terrace pool create|list|show|set|add-device|delete`.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/client/admin_client.h"
#include "cli/pools/adopt.h"
#include "cli/pools/litmus.h"
#include "cli/pools/pool_verbs.h"
#include "cli/pools/system_ram.h"
#include "cli/show/describe.h"
#include "cli/show/list.h"
#include "cli/terminal/verb.h"
#include "core/schema/words.h"

namespace terrace::cli {

Result<PoolStatus> find_pool(AdminClient& client, const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<PoolStatus> pools, client.pools());
  std::vector<std::string> names;
  for (const PoolStatus& pool : pools) {
    names.push_back(str(pool->getName()));
    if (names.back() == name) return pool;
  }
  std::string detail = "no pool is named '" + name + "'";
  if (const std::string near = did_you_mean(name, names); !near.empty())
    detail += "; did you mean '" + near + "'?";
  return Error{.code = ErrorCode::not_found, .where = "terrace pool", .detail = detail};
}

namespace {

struct PoolArguments {
  PoolOptions pool;
  std::string placement = "linear";
  std::string coherence, trust;
  RegionOptions region;
  bool adopt = false;
  bool system_ram = false;
  bool offline = false;
  bool yes = false;
  std::string serial;
};

// Adopts what is to be, and makes the pool; what it adopted of `made` is given back when that fails.
Result<PoolStatus> compose_pool(const Context& context, AdminClient& client, const PoolArguments& arguments,
                                const std::string& made) {
  if (arguments.adopt)
    TERRACE_RETURN_IF_ERROR(adopt_devices(context, client, arguments.pool.devices, arguments.yes));
  auto pool = client.create_pool(arguments.pool);
  if (!pool.ok() && !made.empty()) (void)client.remove_device(made, false);
  return pool;
}

// A region of --memdev is taken apart again when no pool comes of it.
Result<PoolStatus> compose_region_and_pool(const Context& context, AdminClient& client,
                                           PoolArguments& arguments) {
  if (arguments.region.memdevs.empty()) return compose_pool(context, client, arguments, "");
  TERRACE_ASSIGN_OR_RETURN(const std::string made, client.create_region(arguments.region));
  arguments.pool.devices.push_back(made);
  arguments.adopt = true;
  auto pool = compose_pool(context, client, arguments, made);
  if (pool.ok()) return pool;
  Error error = pool.error();
  if (const Status undone = client.destroy_region(made); !undone.ok())
    error.detail += "; the region " + made + " stays: " + undone.error().detail;
  return error;
}

// What the kernel's metadata costs is said before a grant is refused for it.
std::string cost_of_regions(AdminClient& client, const PoolOptions& pool) {
  std::string text;
  const auto devices = client.devices();
  if (!devices.ok()) return text;
  for (const DeviceStatus& device : *devices)
    if (str(device->getBackend()) == "pmem" &&
        std::find(pool.devices.begin(), pool.devices.end(), str(device->getSerial())) != pool.devices.end())
      text += printable(str(device->getSerial())) + ": " + printable(str(device->getDetail())) + "\n";
  return text;
}

rpc::Coherence coherence_of(const PoolArguments& arguments) {
  return schema::enum_of_word<rpc::Coherence>(arguments.coherence).value_or(rpc::Coherence::UNKNOWN);
}

rpc::Trust trust_of(const PoolArguments& arguments) {
  return schema::enum_of_word<rpc::Trust>(arguments.trust).value_or(rpc::Trust::NONE);
}

// One of the words of an enum.
template <typename Enum>
Option add_word_option(Command verb, const char* name, std::string& word, const char* help) {
  return verb.add_option(name, word, help).one_of(schema::enum_words<Enum>());
}

// What an operator can say of a pool, at its making and later.
void add_word_options(Command verb, PoolArguments& arguments) {
  add_word_option<rpc::Coherence>(
      verb, "--coherence", arguments.coherence,
      "Whether hardware keeps the caches of all hosts of this memory coherent; unknown is treated as not");
  add_word_option<rpc::Trust>(verb, "--trust", arguments.trust,
                              "mutual: the pool's tenants trust each other. Memory whose isolation is "
                              "'trusting' is granted only then");
}

// Of a pool that is coherent on the operator's word: what speaks for that is said as well.
void print_pool(const Context& context, AdminClient& client, const PoolStatus& pool, const std::string& text) {
  const bool coherent = pool->getCoherence() == rpc::Coherence::COHERENT;
  const auto unknown = coherent ? not_known_coherent(client, str(pool->getName())) : std::vector<std::string>{};
  if (!context.json) {
    print_text(text + say_not_known_coherent(unknown));
    return;
  }
  nlohmann::json document{{"pool", to_json(pool)}};
  if (coherent) document["not_known_coherent"] = unknown;
  print_json(document);
}

Status set_pool(const Context& context, const PoolArguments& arguments) {
  if (arguments.coherence.empty() && arguments.trust.empty()) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "pool set",
                 .detail = "say what is so of the pool: --coherence or --trust"};
  }
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  const std::string& name = arguments.pool.name;
  std::string text = "pool " + printable(name) + ":";
  std::optional<PoolStatus> pool;
  if (!arguments.coherence.empty()) {
    TERRACE_ASSIGN_OR_RETURN(pool, client->set_pool_coherence(name, coherence_of(arguments)));
    text += " coherence " + arguments.coherence;
  }
  if (!arguments.trust.empty()) {
    TERRACE_ASSIGN_OR_RETURN(pool, client->set_pool_trust(name, trust_of(arguments)));
    text += std::string(arguments.coherence.empty() ? "" : ",") + " trust " + arguments.trust;
  }
  print_pool(context, *client, *pool, text + "\n");
  return {};
}

Status create_pool(const Context& context, PoolArguments& arguments) {
  if (arguments.pool.devices.empty() && arguments.region.memdevs.empty() && !arguments.system_ram) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "pool create",
                 .detail = "a pool is made of devices: --device SERIAL, or --memdev SERIAL for a new region"};
  }
  arguments.pool.placement =
      schema::enum_of_word<rpc::Placement>(arguments.placement).value_or(rpc::Placement::LINEAR);
  arguments.pool.coherence = coherence_of(arguments);
  arguments.pool.trust = trust_of(arguments);
  if (arguments.pool.stripe_bytes != 0 && arguments.pool.placement != rpc::Placement::STRIPED) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "pool create",
                 .detail = "--stripe is for --placement striped only"};
  }
  if (arguments.system_ram && !arguments.region.memdevs.empty()) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "pool create",
                 .detail = "--memdev makes a persistent region, which is no memory for --system-ram"};
  }
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  if (arguments.system_ram) return create_system_ram_pool(context, *client, arguments.pool, arguments.yes);
  TERRACE_ASSIGN_OR_RETURN(const PoolStatus pool, compose_region_and_pool(context, *client, arguments));
  print_pool(context, *client, pool, pool_table({pool}) + cost_of_regions(*client, arguments.pool));
  return {};
}

Status add_device(const Context& context, const PoolArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  if (arguments.adopt)
    TERRACE_RETURN_IF_ERROR(adopt_devices(context, *client, {arguments.serial}, arguments.yes));
  TERRACE_ASSIGN_OR_RETURN(const PoolStatus pool, client->add_device(arguments.pool.name, arguments.serial));
  print_pool(context, *client, pool, pool_table({pool}));
  return {};
}

Status list_pools(const Context& context, const Listing& listing) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(std::vector<PoolStatus> pools, client->pools());
  return show_list<PoolStatus>(context, listing, std::move(pools),
                               {.key = "pools",
                                .name = "name",
                                .table = pool_table,
                                .none = "no pools; 'terrace pool create NAME --device SERIAL' makes one\n"});
}

Status show_pool(const Context& context, const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const PoolStatus pool, find_pool(*client, name));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DeviceStatus> all_devices, client->devices());
  TERRACE_ASSIGN_OR_RETURN(const std::vector<LeaseStatus> leases, client->leases(name, ""));
  std::vector<DeviceStatus> devices;
  for (const DeviceStatus& device : all_devices) {
    if (str(device->getPool()) == name) devices.push_back(device);
  }
  if (context.json) {
    print_json({{"pool", to_json(pool)}, {"devices", to_json_list(devices)}, {"leases", to_json_list(leases)}});
    return {};
  }
  std::string text = pool_block(pool) + "\n" + device_table(devices) + "\n";
  text += leases.empty() ? "no leases\n" : lease_table(leases);
  print_text(text);
  return {};
}

Status delete_pool(const Context& context, const PoolArguments& arguments) {
  const std::string& name = arguments.pool.name;
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  if (arguments.offline) return delete_system_ram_pool(context, *client, name);
  TERRACE_RETURN_IF_ERROR(client->delete_pool(name));
  if (context.json) {
    print_json({{"deleted", name}});
  } else {
    print_text("deleted pool " + printable(name) + "\n");
  }
  return {};
}

}  // namespace

void add_pool_verbs(Command app, Context& context) {
  Command pool = app.add_subcommand("pool", "Pools: devices under one policy, from which leases are granted");
  pool.require_subcommand();
  const auto arguments = std::make_shared<PoolArguments>();

  Command create = pool.add_subcommand("create", "Compose a pool of adopted devices");
  create.add_option("name", arguments->pool.name, "The pool's name").required();
  create.add_option("--device", arguments->pool.devices, "A device's serial; repeat for more")
      .type_name("SERIAL");
  create
      .add_option(
          "--memdev", arguments->region.memdevs,
          "A CXL memory device's serial; all of them, in this order, become one new region, which is adopted")
      .type_name("SERIAL");
  add_region_options(create, arguments->region);
  add_word_option<rpc::Placement>(
      create, "--placement", arguments->placement,
      "linear: whole runs on one device; striped: over all in stripes; spread: on the emptiest");
  add_size_option(create, "--stripe", arguments->pool.stripe_bytes,
                  "With striped: how much lies on one device before the next (default: one granule)");
  add_word_options(create, *arguments);
  create.add_flag("--adopt", arguments->adopt, "Adopt those devices first; their contents are lost");
  create.add_flag(
      "--system-ram", arguments->system_ram,
      "Give those dax devices (or the only one) to the kernel as memory of a node, and lease from there");
  create.add_flag("--yes", arguments->yes,
                  "With --adopt, --memdev or --system-ram: do not ask, whatever is on them");
  on_verb(create, context, [&context, arguments] { return create_pool(context, *arguments); });

  const auto listing = std::make_shared<Listing>();
  on_list(pool.add_subcommand("list", "All pools, and how full they are"), context, listing,
          [&context, listing] { return list_pools(context, *listing); });

  Command show = pool.add_subcommand("show", "One pool: what lies where, its devices and leases");
  show.add_option("name", arguments->pool.name, "The pool's name").required().type_name("POOL");
  on_verb(show, context, [&context, arguments] { return show_pool(context, arguments->pool.name); });

  Command set = pool.add_subcommand(
      "set", "Say what is so of a pool's memory and tenants; spaces made before stay as they are");
  set.add_option("name", arguments->pool.name, "The pool's name").required().type_name("POOL");
  add_word_options(set, *arguments);
  on_verb(set, context, [&context, arguments] { return set_pool(context, *arguments); });

  Command add = pool.add_subcommand("add-device", "Add an adopted device to a pool in use");
  add.add_option("name", arguments->pool.name, "The pool's name").required().type_name("POOL");
  add.add_option("serial", arguments->serial, "The device's serial").required();
  add.add_flag("--adopt", arguments->adopt, "Adopt it first; its contents are lost");
  add.add_flag("--yes", arguments->yes, "With --adopt: do not ask, whatever is on it");
  on_verb(add, context, [&context, arguments] { return add_device(context, *arguments); });

  add_pool_compact_verb(pool, context);

  Command remove = pool.add_subcommand("delete", "Take an empty pool apart; its devices stay adopted");
  remove.add_option("name", arguments->pool.name, "The pool's name").required().type_name("POOL");
  remove.add_flag(
      "--offline", arguments->offline,
      "Also give its memory nodes up and take their memory back from the kernel: dax devices again");
  on_verb(remove, context, [&context, arguments] { return delete_pool(context, *arguments); });
}

}  // namespace terrace::cli
