// SPDX-License-Identifier: Apache-2.0
// What a list prints: the rows that were asked for, as a table, as documents, or as names.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/show/describe.h"
#include "cli/terminal/listing.h"
#include "cli/terminal/output.h"

namespace terrace::cli {

template <typename Row>
struct ListView {
  const char* key;   // of the list in a document
  const char* name;  // the key whose value says which row it is
  std::string (*table)(const std::vector<Row>&);
  std::string none;  // what is said when there are none at all
};

// Those of `rows` that `listing` asks for, in its order; `documents` becomes theirs.
template <typename Row>
Result<std::vector<Row>> chosen_rows(std::vector<Row> rows, const Listing& listing, nlohmann::json& documents) {
  const nlohmann::json all = to_json_list(rows);
  TERRACE_ASSIGN_OR_RETURN(const std::vector<size_t> indices, choose_rows(all, listing));
  documents = nlohmann::json::array();
  std::vector<Row> chosen;
  for (const size_t index : indices) {
    documents.push_back(all[index]);
    chosen.push_back(std::move(rows[index]));
  }
  return chosen;
}

template <typename Row>
Status show_list(const Context& context, const Listing& listing, std::vector<Row> rows,
                 const ListView<Row>& view) {
  const bool any = !rows.empty();
  nlohmann::json documents;
  TERRACE_ASSIGN_OR_RETURN(const std::vector<Row> chosen, chosen_rows(std::move(rows), listing, documents));
  if (context.json) {
    print_json({{view.key, documents}});
    return {};
  }
  if (context.format == OutputFormat::name) {
    TERRACE_ASSIGN_OR_RETURN(const std::string names,
                             name_lines(documents, listing.columns.empty() ? view.name : listing.columns));
    print_text(names);
    return {};
  }
  if (chosen.empty()) {
    print_text(any ? "none of them is asked for by --where\n" : view.none);
    return {};
  }
  std::string table;
  if (context.format == OutputFormat::wide || !listing.columns.empty()) {
    TERRACE_ASSIGN_OR_RETURN(table, key_table(documents, listing.columns));
  } else {
    table = view.table(chosen);
  }
  print_text(table);
  return {};
}

}  // namespace terrace::cli
