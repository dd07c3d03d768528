// SPDX-License-Identifier: Apache-2.0
// What every list can be asked for: which rows, in which order, how many, which columns, again and again.
//
// Place     Works on the rows as JSON, so that a list needs to say nothing for it; cli/show/list.h is what lists call.
// Threads   The main thread.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/terminal/verb.h"

namespace terrace::cli {

struct Listing {
  std::vector<std::string> where;  // "phase=active", "bytes>1G": all of them must hold
  std::string sort;                // a key; "-bytes": the largest first
  std::string columns;             // keys, "id,label"; empty: the list's own
  std::string watch;               // seconds; empty: once
  uint64_t limit = 0;              // rows; 0: all

  bool chooses() const { return !where.empty() || !sort.empty() || limit != 0; }
};

// Gives `list` the options of a Listing, and lets it `work`: once, or until it is interrupted.
void on_list(Command list, Context& context, const std::shared_ptr<Listing>& listing,
             std::function<Status()> work);

// Which of `rows`, an array of objects, are asked for, in the order that is asked for.
// Errors    invalid_argument   a key that no row has (lists those there are), a comparison that makes no sense
Result<std::vector<size_t>> choose_rows(const nlohmann::json& rows, const Listing& listing);

// A table of `keys` ("id,label"), or of all keys whose values fit into a cell.
Result<std::string> key_table(const nlohmann::json& rows, const std::string& keys);

// The values of `keys` of each row, a line each, with tabs between them.
Result<std::string> name_lines(const nlohmann::json& rows, const std::string& keys);

}  // namespace terrace::cli
