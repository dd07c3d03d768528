// SPDX-License-Identifier: Apache-2.0
// `terrace queue list|cancel`: the grants that wait for room in full pools.
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/client/admin_client.h"
#include "cli/show/describe.h"
#include "cli/show/list.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {
namespace {

struct QueueArguments {
  std::string pool, tenant, reason;
  uint64_t id = 0;
};

Status list_queues(const Context& context, const QueueArguments& arguments, const Listing& listing) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_ASSIGN_OR_RETURN(std::vector<WaitingStatus> waiting, client->queue(arguments.pool, arguments.tenant));
  return show_list<WaitingStatus>(
      context, listing, std::move(waiting),
      {.key = "waiting", .name = "id", .table = waiting_table, .none = "nobody waits\n"});
}

Status cancel_request(const Context& context, const QueueArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const auto client, AdminClient::connect(context));
  TERRACE_RETURN_IF_ERROR(client->cancel_waiting(LeaseId{arguments.id}, arguments.reason));
  if (context.json) {
    print_json({{"cancelled", arguments.id}});
  } else {
    print_text("request " + std::to_string(arguments.id) + " does not wait any more\n");
  }
  return {};
}

}  // namespace

void add_queue_verbs(Command app, Context& context) {
  Command queue = app.add_subcommand("queue", "Grants that wait for room in a full pool");
  queue.require_subcommand();
  const auto arguments = std::make_shared<QueueArguments>();

  Command list = queue.add_subcommand("list", "Who waits, in the order in which they are served");
  list.add_option("--pool", arguments->pool, "Only for this pool").type_name("POOL");
  list.add_option("--tenant", arguments->tenant, "Only of this tenant").type_name("TENANT");
  const auto listing = std::make_shared<Listing>();
  on_list(list, context, listing,
          [&context, arguments, listing] { return list_queues(context, *arguments, *listing); });

  Command cancel = queue.add_subcommand("cancel", "Take a request out of its queue; who waits for it is told");
  cancel.add_option("id", arguments->id, "Its id, as `terrace queue list` shows it").required().type_name("ID");
  cancel.add_option("--reason", arguments->reason, "What those who wait are told, and the audit log has")
      .type_name("TEXT");
  on_verb(cancel, context, [&context, arguments] { return cancel_request(context, *arguments); });
}

}  // namespace terrace::cli
