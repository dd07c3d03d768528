// SPDX-License-Identifier: Apache-2.0
// `terrace kv`: a shared cache of immutable blocks, in a lease or a file.
#include "cli/kv/kv_verbs.h"
#include "cli/terminal/verb.h"

namespace terrace::cli {

Option add_kv_where(Command verb, std::string& where) {
  return verb.add_option("where", where, "A lease's id or label; with a '/' a path to a file or a dax device")
      .required()
      .type_name("ID|LABEL|PATH");
}

Option add_kv_namespace(Command verb, std::string& name) {
  return verb.add_option("--namespace", name, "Whose blocks (default: the namespace without a name)")
      .type_name("NAMESPACE");
}

void add_kv_verbs(Command app, Context& context) {
  Command kv = app.add_subcommand("kv", "KV spaces: a shared cache of immutable blocks, in a lease or a file");
  kv.require_subcommand();
  add_kv_format_verb(kv, context);
  add_kv_show_verbs(kv, context);
  add_kv_block_verbs(kv, context);
  add_kv_room_verbs(kv, context);
  add_kv_policy_verb(kv, context);
  add_kv_member_verbs(kv, context);
  add_kv_serve_verb(kv, context);
}

}  // namespace terrace::cli
