// SPDX-License-Identifier: Apache-2.0
#include "cli/tools/cert_renew.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/client/own_certificate.h"
#include "cli/terminal/verb.h"
#include "core/identity/certificate_life.h"

namespace terrace::cli {
namespace {

Status renew_and_tell(const Context& context) {
  TERRACE_ASSIGN_OR_RETURN(const OwnCertificate fresh, renew_own_certificate(context));
  const int64_t days = days_left(fresh.ends_s(), std::time(nullptr));
  if (context.json) {
    print_json({{"certificate", fresh.path()}, {"days_left", days}});
  } else {
    print_text(fresh.path() + " was renewed: good for " + std::to_string(days) + " days\n");
  }
  return {};
}

}  // namespace

void add_cert_renew_verb(Command cert, Context& context) {
  Command renew = cert.add_subcommand("renew", "Have the manager renew this client's certificate (--connect)");
  on_verb(renew, context, [&context] { return renew_and_tell(context); });
}

}  // namespace terrace::cli
