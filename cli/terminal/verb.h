// SPDX-License-Identifier: Apache-2.0
// Shared by the verbs of `terrace`: the parser, global options, errors as text and exit codes, output.
//
// Place     cli/main.cc builds one Context and lets each verb family add itself to the parser.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/terminal/command_line.h"
#include "cli/terminal/output.h"
#include "core/base/ids.h"
#include "core/base/result.h"

namespace terrace::cli {

// Each adds its verbs to `app`; the callbacks keep references to `context`.
void add_daemon_verbs(Command app, Context& context);
void add_status_verbs(Command app, Context& context);  // status, check
void add_health_verb(Command app, Context& context);
void add_events_verb(Command app, Context& context);
void add_doctor_verb(Command app, Context& context);
void add_completion_verb(Command app, Context& context);
void add_help_verb(Command app, Context& context);
void add_version_verb(Command app, Context& context);
void add_man_verb(Command app, Context& context);
void add_device_verbs(Command app, Context& context);
void add_pool_verbs(Command app, Context& context);
void add_region_verbs(Command app, Context& context);
void add_lease_verbs(Command app, Context& context);
void add_vm_verbs(Command app, Context& context);
void add_quota_verbs(Command app, Context& context);
void add_reserve_verbs(Command app, Context& context);
void add_queue_verbs(Command app, Context& context);
void add_audit_verb(Command app, Context& context);
void add_host_verbs(Command app, Context& context);
void add_cert_verbs(Command app, Context& context);
void add_fsck_verb(Command app, Context& context);
void add_state_verbs(Command app, Context& context);  // state backup, verify, restore, export, apply
void add_tensor_verbs(Command app, Context& context);
void add_checkpoint_verbs(Command app, Context& context);
void add_kv_verbs(Command app,
                  Context& context);  // kv format, stat, list, put, get, erase, evict, flush, verify, serve
void add_run_verb(Command app, Context& context);
void add_top_verb(Command app, Context& context);
void add_plan_verb(Command app, Context& context);
void add_tiersim_verb(Command app, Context& context);
void add_tier_verbs(Command app, Context& context);  // tier status, set, pause, resume, map

// All of the above, global options and help text: the whole command line, for main() and for completion.
CommandLine build_parser(Context& context);

// Options whose text must be a size or a duration. A wrong one is a usage error with the texts of
// core/base/units.h.
Option add_size_option(Command verb, std::string_view name, uint64_t& bytes, std::string_view help);
Option add_duration_option(Command verb, std::string_view name, uint64_t& ns, std::string_view help);
// "--on-fence keep|kill": what becomes of the holders of a lease.
Option add_on_fence_option(Command verb, std::string& word, std::string_view help);

// What `verb` does when it was chosen: `work` gives a Status, which becomes text and exit code. Who is no list
// (cli/terminal/listing.h) refuses the formats that only lists have.
void on_verb(Command verb, Context& context, std::function<Status()> work);

// Whether `text` is a lease's id where an id or a label is taken: digits and nothing else.
bool only_digits(const std::string& text);

// What names a lease on the command line. All digits: an id; anything else: a label, with the id 0.
// Errors    invalid_argument  empty
//           not_found         digits that are no id
Result<LeaseId> lease_id_in(const std::string& name, const char* where);

// One of output_format_words().
Status set_output_format(Context& context, const std::string& word);

// Refuses a label that could never be found again, because it reads as an id.
Status check_label(const std::string& label);

// The closest of `known` to a mistyped `word`, or "" when none is near enough to be meant.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

// Looks for a mistyped verb or option before CLI11 does, to say what may have been meant.
// Returns   the sentence for the user, or "" when the words can be parsed as far as verbs go.
std::string explain_unknown_word(Command root, const std::vector<std::string>& arguments);

}  // namespace terrace::cli
