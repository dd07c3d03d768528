// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>

#include "cli/tier/tier_verbs.h"

namespace terrace::cli {
namespace {

bool matches_word(const TierPageView& page, const std::string& word) {
  if (only_digits(word)) return std::to_string(page.pid) == word;
  return page.program == word || std::any_of(page.ranges.begin(), page.ranges.end(),
                                             [&](const TierRangeView& range) { return range.name == word; });
}

Error no_such_process(const TierScan& scan, const std::string& word) {
  std::vector<std::string> known;
  for (const TierPageView& page : scan.pages) {
    known.push_back(page.program);
    known.push_back(std::to_string(page.pid));
    for (const TierRangeView& range : page.ranges) known.push_back(range.name);
  }
  const std::string near = did_you_mean(word, known);
  std::string detail =
      "no process " + std::string(only_digits(word) ? "" : "or range ") + "'" + word + "' migrates memory";
  if (only_digits(word)) detail = "process " + word + " migrates no memory";
  if (!near.empty())
    detail += "; did you mean '" + near + "'?";
  else if (scan.pages.empty())
    detail += "; none does" + std::string(::geteuid() == 0 ? "" : " for this user");
  else
    detail += "; `terrace tier status` lists those that do";
  return {.code = ErrorCode::not_found, .where = tier_where, .detail = detail};
}

}  // namespace

Error tier_usage(const std::string& detail) {
  return {.code = ErrorCode::invalid_argument, .where = tier_where, .detail = detail};
}

Result<std::vector<TierPageView>> choose(const TierScan& scan, const std::string& word) {
  if (word.empty()) return scan.pages;
  std::vector<TierPageView> meant;
  for (const TierPageView& page : scan.pages)
    if (matches_word(page, word)) meant.push_back(page);
  if (meant.empty()) return no_such_process(scan, word);
  return meant;
}

Result<TierPageView> choose_one(const TierScan& scan, const std::string& word) {
  TERRACE_ASSIGN_OR_RETURN(std::vector<TierPageView> meant, choose(scan, word));
  if (meant.size() == 1) return std::move(meant.front());
  std::string names;
  for (const TierPageView& page : meant) names += (names.empty() ? "" : ", ") + page.title();
  return tier_usage("'" + word + "' is several: " + names + "; say which by its number");
}

Result<std::vector<TierRangeView>> ranges_of(const TierPageView& page, const std::string& word,
                                             const std::string& name) {
  if (page.ranges.empty())
    return Error{
        .code = ErrorCode::not_found, .where = tier_where, .detail = page.title() + " has no range now"};
  const bool by_range = name.empty() && !only_digits(word) && page.program != word;
  const std::string& wanted = by_range ? word : name;
  if (wanted.empty()) return page.ranges;
  std::vector<TierRangeView> found;
  std::vector<std::string> known;
  for (const TierRangeView& range : page.ranges) {
    known.push_back(range.name);
    if (range.name == wanted) found.push_back(range);
  }
  if (!found.empty()) return found;
  std::string names;
  for (const std::string& one : known) names += (names.empty() ? "" : ", ") + one;
  const std::string near = did_you_mean(wanted, known);
  return Error{.code = ErrorCode::not_found,
               .where = tier_where,
               .detail = page.title() + " has no range '" + wanted + "'; " +
                         (near.empty() ? "it has " + names : "did you mean '" + near + "'?")};
}

Option add_tier_process(Command verb, std::string& process) {
  return verb.add_option("process", process, "Its number, its program's name, or a range's")
      .type_name("PID|NAME");
}

void add_tier_range(Command verb, std::string& range) {
  verb.add_option("--range", range, "Only this range of the process (default: all)").type_name("NAME");
}

}  // namespace terrace::cli
