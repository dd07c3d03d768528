// SPDX-License-Identifier: Apache-2.0
// The meaning of a word on the command line of `terrace tier`: a process by its number, its program's name, or
// a range's name.
//
// Place     Between tier_pages.h and the verbs. Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/terminal/verb.h"
#include "cli/tier/tier_pages.h"

namespace terrace::cli {

// All that `word` means; all there are for none.
// Errors    not_found   nobody; says what may have been meant
Result<std::vector<TierPageView>> choose(const TierScan& scan, const std::string& word);

// The one process that `word` means.
// Errors    not_found; invalid_argument   several: names them
Result<TierPageView> choose_one(const TierScan& scan, const std::string& word);

// Its range of that name, or all; a range's name may have been what chose the process, too.
// Errors    not_found   no such range; says what may have been meant
Result<std::vector<TierRangeView>> ranges_of(const TierPageView& page, const std::string& word,
                                             const std::string& name);

// A mistake on the command line.
Error tier_usage(const std::string& detail);

// The options that the verbs share.
Option add_tier_process(Command verb, std::string& process);
void add_tier_range(Command verb, std::string& range);

// tier_change.cc
void add_tier_change_verbs(Command family, Context& context);  // set, pause, resume

}  // namespace terrace::cli
