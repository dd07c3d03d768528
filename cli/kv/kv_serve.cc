// SPDX-License-Identifier: Apache-2.0
// `terrace kv serve`: a space for clients of the redis protocol.
#include <sys/resource.h>

#include <cstdio>
#include <memory>

#include "cli/kv/kv_place.h"
#include "cli/kv/kv_verbs.h"
#include "cli/kv/serve/listener.h"
#include "cli/kv/serve/server.h"
#include "cli/terminal/verb.h"
#include "core/version/build_info.h"

namespace terrace::cli {
namespace {

constexpr const char* kv_serve_verb = "terrace kv serve";

struct KvServeArguments {
  std::string where, name_space, spill, local;
  std::string listen = "127.0.0.1:6399";
  bool read_only = false;
  bool insecure = false;
};

// As many descriptors as this process may have: each connection is one.
void kv_raise_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

Status serve_space(Context& context, const KvServeArguments& arguments) {
  if (context.json)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = kv_serve_verb,
                 .detail = "'terrace kv serve' has no document to print; leave --json out"};
  TERRACE_ASSIGN_OR_RETURN(KvNamespace name_space, KvNamespace::of(arguments.name_space));
  const UniqueFd signals = ending_signals();  // before there are threads
  if (!signals.valid()) return os_error(errno, kv_serve_verb, "cannot wait for signals");
  kv_raise_descriptors();
  TERRACE_ASSIGN_OR_RETURN(const KvPlace place, KvPlace::open(context, arguments.where, kv_serve_verb));
  TERRACE_ASSIGN_OR_RETURN(auto spill, open_kv_spill(arguments.spill, !arguments.read_only));
  TERRACE_ASSIGN_OR_RETURN(auto local, open_kv_local(arguments.local));
  TERRACE_ASSIGN_OR_RETURN(const auto space,
                           attach_kv(place, arguments.read_only ? KvUse::serves_reads : KvUse::serves,
                                     std::move(spill), std::move(local)));
  TERRACE_ASSIGN_OR_RETURN(const KvStat stat, space->stat());
  TERRACE_ASSIGN_OR_RETURN(const kv_serve::Listener listener,
                           kv_serve::Listener::open(arguments.listen, arguments.insecure));
  kv_serve::Server server(*space,
                          {.name_space = std::move(name_space),
                           .read_only = arguments.read_only,
                           .max_block_bytes = stat.max_block_bytes},
                          listener, std::string(version_and_build()));
  print_text("listening on " + listener.shown() + "\n");
  std::fflush(stdout);
  if (const Status ended = server.run(signals.get()); !ended.ok()) {
    fail(context, kv_error_at(place, ended.error()));
    context.exit_code = exit_failed;
  }
  return {};
}

}  // namespace

void add_kv_serve_verb(Command kv, Context& context) {
  const auto arguments = std::make_shared<KvServeArguments>();
  Command verb = kv.add_subcommand("serve", "Serve a space to clients of the redis protocol");
  verb.footer(
      "Says on stdout where it listens, and ends with 0 at SIGTERM, SIGINT or SIGHUP, with 1 when the memory "
      "is\n"
      "gone. There are no passwords: who can connect reads and erases everything in the namespace.");
  add_kv_where(verb, arguments->where);
  verb.add_option("--listen", arguments->listen, "Where (default 127.0.0.1:6399; port 0: any free one)")
      .type_name("unix:PATH|HOST:PORT");
  add_kv_namespace(verb, arguments->name_space);
  verb.add_option("--spill", arguments->spill,
                  "A folder of a local disk, where evicted blocks go; BYTES when it is new")
      .type_name("DIR[:BYTES]");
  verb.add_option("--local", arguments->local,
                  "Copies of hot blocks in the server's own memory: at most so much of it, 1M at least")
      .type_name("SIZE");
  verb.add_flag("--readonly", arguments->read_only, "Clients put and erase nothing, and no part is taken");
  verb.add_flag("--insecure", arguments->insecure, "--listen may be where other machines can reach it");
  on_verb(verb, context, [&context, arguments] { return serve_space(context, *arguments); });
}

}  // namespace terrace::cli
