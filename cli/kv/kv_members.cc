// SPDX-License-Identifier: Apache-2.0
// `terrace kv grow` and `shrink`: leases or files that a space has more, or less.
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/kv/kv_place.h"
#include "cli/kv/kv_verbs.h"
#include "cli/terminal/verb.h"
#include "terrace/session.h"

namespace terrace::cli {
namespace {

constexpr const char* kv_grow_verb = "terrace kv grow";
constexpr const char* kv_shrink_verb = "terrace kv shrink";

struct KvMemberArguments {
  std::string where, with, label, member;
  uint64_t size_bytes = 0;
  uint64_t wait_ns = 30 * ns_per_s;
};

bool is_member(const std::vector<KvMemberInfo>& members, const std::string& where) {
  return std::any_of(members.begin(), members.end(),
                     [&](const KvMemberInfo& one) { return one.where == where; });
}

// The name of a new member: WHERE-2, WHERE-3, ...: the first that is no member. So who does it again after a crash comes
// to the same one.
std::string next_name(const std::string& first, const std::vector<KvMemberInfo>& members) {
  for (size_t number = 2;; ++number)
    if (std::string name = first + "-" + std::to_string(number); !is_member(members, name)) return name;
}

// A lease as that of `place`, or the one of that label which was granted before. Returns whether it was granted now.
Result<bool> grant_as(const Context& context, const KvPlace& place, const std::string& label, uint64_t bytes) {
  TERRACE_RETURN_IF_ERROR(check_label(label));
  TERRACE_ASSIGN_OR_RETURN(const LeaseInfo first, place.lease().info());
  SessionOptions options;
  options.socket_path = context.socket_path;
  options.client_name = kv_grow_verb;
  options.call_timeout_ns = context.call_timeout_ns;
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, Session::connect(options));
  const Result<std::shared_ptr<Lease>> there = session->attach(LeaseId{}, label, LeaseAccess::read_only);
  if (there.ok()) return false;
  LeaseRequest request;
  request.pool = first.pool;
  request.bytes = bytes;
  request.mode = LeaseMode::shared_coherent;
  request.ttl_ns = first.ttl_ns;
  request.persistent = first.ttl_ns == 0;
  request.detached = true;
  request.label = label;
  TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<Lease> lease, session->grant(request));
  return true;
}

// Makes the memory for a new member. Returns what it is called.
Result<std::string> make_memory(const Context& context, const KvPlace& place,
                                const KvMemberArguments& arguments, const std::vector<KvMemberInfo>& members) {
  const std::string name = arguments.label.empty() ? next_name(place.called(), members) : arguments.label;
  if (place.is_lease()) {
    TERRACE_RETURN_IF_ERROR(grant_as(context, place, name, arguments.size_bytes));
    return name;
  }
  if (::access(name.c_str(), F_OK) == 0)
    return name;  // of a growth that was broken off: it is looked at before it is used
  TERRACE_RETURN_IF_ERROR(KvPlace::create(context, name, arguments.size_bytes, kv_grow_verb));
  return name;
}

Status kv_grow(const Context& context, const KvMemberArguments& arguments) {
  if (arguments.with.empty() == (arguments.size_bytes == 0))
    return Error{.code = ErrorCode::invalid_argument,
                 .where = kv_grow_verb,
                 .detail = "say either --size, for a new lease or file, or --with and one that is there"};
  TERRACE_ASSIGN_OR_RETURN(const KvPlace place, KvPlace::open(context, arguments.where, kv_grow_verb));
  TERRACE_ASSIGN_OR_RETURN(const auto space, attach_kv(place, KvUse::writes));
  std::string member;
  if (arguments.with.empty()) {
    TERRACE_ASSIGN_OR_RETURN(member, make_memory(context, place, arguments, space->members()));
  } else if (is_member(space->members(), arguments.with)) {
    member = arguments.with;
  } else {
    TERRACE_ASSIGN_OR_RETURN(const KvPlace with, KvPlace::open(context, arguments.with, kv_grow_verb));
    member = with.called();
  }
  if (Status grown = space->grow(member); !grown.ok()) return kv_error_at(place, std::move(grown).error());
  TERRACE_ASSIGN_OR_RETURN(const KvStat stat, space->stat());
  if (context.json)
    print_json({{"grown", member}, {"members", stat.members.size()}, {"data_bytes", stat.data_bytes}});
  else
    print_text(printable(member) + " is a member now: " + count_text(stat.members.size(), "member") + ", " +
               format_size(stat.data_bytes) + "; programs that have the space open use it within seconds\n");
  return {};
}

Status kv_shrink(Context& context, const KvMemberArguments& arguments) {
  TERRACE_ASSIGN_OR_RETURN(const KvPlace place, KvPlace::open(context, arguments.where, kv_shrink_verb));
  TERRACE_ASSIGN_OR_RETURN(const auto space, attach_kv(place, KvUse::writes));
  std::string member = arguments.member;
  if (!is_member(space->members(), member)) {
    const Result<KvPlace> given = KvPlace::open(context, member, kv_shrink_verb);
    if (given.ok()) member = given->called();
  }
  Result<KvShrunk> shrunk = space->shrink(member, arguments.wait_ns);
  if (!shrunk.ok()) return kv_error_at(place, std::move(shrunk).error());
  const nlohmann::json document = {{"member", member},
                                   {"moved", shrunk->moved},
                                   {"moved_bytes", shrunk->moved_bytes},
                                   {"left_behind", shrunk->left_behind},
                                   {"holders", shrunk->holders}};
  const std::string text = printable(member) + " has left: " + count_text(shrunk->moved, "block") + ", " +
                           format_size(shrunk->moved_bytes) + ", moved to other members, " +
                           std::to_string(shrunk->left_behind) + " had no room there\n";
  if (shrunk->holders != 0) {
    const Error held{
        .code = ErrorCode::busy,
        .where = kv_shrink_verb,
        .detail = member + " has left the space, but " + count_text(shrunk->holders, "holder") +
                  " still read in place there or are stopped; say it again to wait longer. If it is "
                  "released now they get SIGBUS there"};
    fail_with(context, held, "shrunk", document, text);
    return {};
  }
  if (context.json)
    print_json({{"shrunk", document}});
  else
    print_text(text + "nobody has it open any more: it may be released\n");
  return {};
}

}  // namespace

void add_kv_member_verbs(Command kv, Context& context) {
  const auto arguments = std::make_shared<KvMemberArguments>();
  Command grow = kv.add_subcommand("grow", "Give a space one more lease or file, while programs use it");
  grow.footer(
      "A space is found by any of its members. After a crash the same words, with --label, complete what was "
      "begun.");
  add_kv_where(grow, arguments->where);
  add_size_option(grow, "--size", arguments->size_bytes,
                  "A new one, as the first: a lease of the same pool, or a file beside it");
  grow.add_option("--label", arguments->label, "What the new one is called (default: WHERE-2, WHERE-3, ...)")
      .type_name("LABEL|PATH");
  grow.add_option("--with", arguments->with, "A lease or a file that is there, empty")
      .type_name("ID|LABEL|PATH");
  on_verb(grow, context, [&context, arguments] { return kv_grow(context, *arguments); });

  Command shrink = kv.add_subcommand("shrink", "Make a lease or file leave a space, while programs use it");
  shrink.footer(
      "Its blocks move to the other members as far as there is room, first those that are kept or were used "
      "last.\n"
      "Then programs let go of it. It is not released: 'terrace lease release' does that, or rm.");
  add_kv_where(shrink, arguments->where);
  shrink.add_option("--lease,--member", arguments->member, "Which member leaves, as 'terrace kv stat' shows it")
      .required()
      .type_name("ID|LABEL|PATH");
  add_duration_option(shrink, "--wait", arguments->wait_ns,
                      "How long to wait for programs that read in place there (default 30s)");
  on_verb(shrink, context, [&context, arguments] { return kv_shrink(context, *arguments); });
}

}  // namespace terrace::cli
