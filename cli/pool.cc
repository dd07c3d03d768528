// `terrace pool create|list|show|delete`.
#include <memory>

#include "cli/admin_client.h"
#include "cli/cli.h"
#include "cli/describe.h"

namespace terrace::cli {
namespace {

struct PoolArguments {
  std::string name;
  std::vector<std::string> devices;
  bool adopt = false;
};

Status create_pool(const Context& context, const PoolArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  if (arguments.adopt) {
    for (const std::string& serial : arguments.devices) TERRACE_RETURN_IF_ERROR(client->adopt(serial));
  }
  TERRACE_ASSIGN_OR_RETURN(const PoolInfo pool, client->create_pool(arguments.name, arguments.devices));
  if (context.json) {
    print_json({{"pool", to_json(pool)}});
  } else {
    print_text(pool_table({pool}));
  }
  return {};
}

Status list_pools(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<PoolInfo> pools, client->pools());
  if (context.json) {
    print_json({{"pools", to_json_list(pools)}});
  } else if (pools.empty()) {
    print_text("no pools; 'terrace pool create NAME --device SERIAL' makes one\n");
  } else {
    print_text(pool_table(pools));
  }
  return {};
}

Result<PoolInfo> find_pool(AdminClient& client, const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<PoolInfo> pools, client.pools());
  std::vector<std::string> names;
  for (const PoolInfo& pool : pools) {
    if (pool.name == name) return pool;
    names.push_back(pool.name);
  }
  std::string detail = "no pool is named '" + name + "'";
  if (const std::string near = did_you_mean(name, names); !near.empty())
    detail += "; did you mean '" + near + "'?";
  return Error{.code = ErrorCode::not_found, .where = "pool show", .detail = detail};
}

Status show_pool(const Context& context, const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(const PoolInfo pool, find_pool(*client, name));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<DeviceStatus> all_devices, client->devices());
  TERRACE_ASSIGN_OR_RETURN(const std::vector<LeaseInfo> leases, client->leases(name, ""));
  std::vector<DeviceStatus> devices;
  for (const DeviceStatus& device : all_devices) {
    if (device.pool == name) devices.push_back(device);
  }
  if (context.json) {
    print_json({{"pool", to_json(pool)}, {"devices", to_json_list(devices)}, {"leases", to_json_list(leases)}});
    return {};
  }
  std::string text = pool_table({pool}) + "\n" + device_table(devices) + "\n";
  text += leases.empty() ? "no leases\n" : lease_table(leases);
  print_text(text);
  return {};
}

Status delete_pool(const Context& context, const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_RETURN_IF_ERROR(client->delete_pool(name));
  if (context.json) {
    print_json({{"deleted", name}});
  } else {
    print_text("deleted pool " + printable(name) + "\n");
  }
  return {};
}

}  // namespace

void add_pool_verbs(CLI::App& app, Context& context) {
  CLI::App* pool = app.add_subcommand("pool", "Pools: devices under one policy, from which leases are granted");
  pool->require_subcommand(1);
  const auto arguments = std::make_shared<PoolArguments>();

  CLI::App* create = pool->add_subcommand("create", "Compose a pool of adopted devices");
  create->add_option("name", arguments->name, "The pool's name")->required();
  create->add_option("--device", arguments->devices, "A device's serial; repeat for more")
      ->required()
      ->type_name("SERIAL");
  create->add_flag("--adopt", arguments->adopt, "Adopt those devices first; their contents are lost");
  create->callback([&context, arguments] {
    if (const Status done = create_pool(context, *arguments); !done.ok()) fail(context, done.error());
  });

  pool->add_subcommand("list", "All pools, and how full they are")->callback([&context] {
    if (const Status done = list_pools(context); !done.ok()) fail(context, done.error());
  });

  CLI::App* show = pool->add_subcommand("show", "One pool with its devices and leases");
  show->add_option("name", arguments->name, "The pool's name")->required();
  show->callback([&context, arguments] {
    if (const Status done = show_pool(context, arguments->name); !done.ok()) fail(context, done.error());
  });

  CLI::App* remove = pool->add_subcommand("delete", "Take an empty pool apart; its devices stay adopted");
  remove->add_option("name", arguments->name, "The pool's name")->required();
  remove->callback([&context, arguments] {
    if (const Status done = delete_pool(context, arguments->name); !done.ok()) fail(context, done.error());
  });
}

}  // namespace terrace::cli
