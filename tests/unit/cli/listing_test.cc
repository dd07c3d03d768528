// SPDX-License-Identifier: Apache-2.0
// Lists: which rows, in what order, as what text. And how tables and documents look.
#include "cli/terminal/listing.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "cli/terminal/output.h"
#include "cli/terminal/yaml.h"

using namespace terrace;
using namespace terrace::cli;

namespace {

const nlohmann::json leases = {
    {{"id", 1},
     {"label", "model"},
     {"bytes", 8ULL << 30},
     {"phase", "active"},
     {"devices", {"emu:a", "emu:b"}},
     {"usage", {{"holder", "trainer[7]"}}}},
    {{"id", 2},
     {"label", nullptr},
     {"bytes", 64ULL << 20},
     {"phase", "waiting"},
     {"devices", {"emu:b"}},
     {"usage", {{"holder", ""}}}},
    {{"id", 10},
     {"label", "scratch"},
     {"bytes", 1ULL << 30},
     {"phase", "active"},
     {"devices", {"emu:a"}},
     {"usage", {{"holder", "x"}}}},
};

std::vector<size_t> chosen(const Listing& listing) {
  const auto rows = choose_rows(leases, listing);
  REQUIRE(rows.ok());
  return *rows;
}

std::string refused(const Listing& listing) {
  const auto rows = choose_rows(leases, listing);
  REQUIRE_FALSE(rows.ok());
  CHECK(rows.error().code == ErrorCode::invalid_argument);
  return rows.error().detail;
}

Listing where(std::vector<std::string> comparisons) {
  Listing listing;
  listing.where = std::move(comparisons);
  return listing;
}

// For as long as it lives; tests share the process.
struct StyleScope {
  OutputStyle before = output_style();
  ~StyleScope() { output_style() = before; }
};

using Rows = std::vector<size_t>;

}  // namespace

TEST_CASE("List: --where compares words, sizes, items of lists and keys within keys") {
  CHECK(chosen(where({})) == Rows{0, 1, 2});
  CHECK(chosen(where({"phase=active"})) == Rows{0, 2});
  CHECK(chosen(where({"phase!=active"})) == Rows{1});
  CHECK(chosen(where({"id=2"})) == Rows{1});
  CHECK(chosen(where({"bytes=1G"})) == Rows{2});
  CHECK(chosen(where({"bytes>=1G"})) == Rows{0, 2});
  CHECK(chosen(where({"bytes>1G"})) == Rows{0});
  CHECK(chosen(where({"bytes<1G"})) == Rows{1});
  CHECK(chosen(where({"bytes<=1G", "phase=active"})) == Rows{2});
  CHECK(chosen(where({"label="})) == Rows{1});
  CHECK(chosen(where({"label~cra"})) == Rows{2});
  CHECK(chosen(where({"devices=emu:b"})) == Rows{0, 1});
  CHECK(chosen(where({"usage.holder~trainer"})) == Rows{0});
}

TEST_CASE("List: a comparison that makes no sense is refused with what would") {
  CHECK(refused(where({"phase"})).find("is no comparison") != std::string::npos);
  CHECK(refused(where({"=active"})).find("is no comparison") != std::string::npos);
  CHECK(refused(where({"phase!active"})).find("is no comparison") != std::string::npos);
  CHECK(refused(where({"phaes=active"})).find("did you mean 'phase'?") != std::string::npos);
  CHECK(refused(where({"qqqqqqqq=1"})).find("bytes") != std::string::npos);
  CHECK(refused(where({"bytes>much"})).find("neither a number nor a size") != std::string::npos);
  // Where there is no row, nobody knows the keys.
  CHECK(choose_rows(nlohmann::json::array(), where({"phaes=active"})).ok());
}

TEST_CASE("List: --sort by numbers as numbers, both ways, --limit behind it") {
  Listing listing;
  listing.sort = "id";
  CHECK(chosen(listing) == Rows{0, 1, 2});
  listing.sort = "-id";
  CHECK(chosen(listing) == Rows{2, 1, 0});
  listing.sort = "-bytes";
  listing.limit = 2;
  CHECK(chosen(listing) == Rows{0, 2});
  listing.sort = "label";  // what has no label comes first
  listing.limit = 0;
  CHECK(chosen(listing) == Rows{1, 0, 2});
  listing.sort = "sise";
  CHECK(refused(listing).find("there is no key 'sise'") != std::string::npos);
}

TEST_CASE("List: columns and names are keys") {
  const auto table = key_table(leases, "id,label,devices");
  REQUIRE(table.ok());
  CHECK(*table ==
        "ID  LABEL    DEVICES\n"
        " 1  model    emu:a emu:b\n"
        " 2  -        emu:b\n"
        "10  scratch  emu:a\n");
  // Of all keys: what is an object fits into no cell.
  const auto all = key_table(leases, "");
  REQUIRE(all.ok());
  CHECK(all->substr(0, all->find('\n')).find("USAGE") == std::string::npos);
  CHECK(all->substr(0, all->find('\n')).find("PHASE") != std::string::npos);
  const auto names = name_lines(leases, "id,label");
  REQUIRE(names.ok());
  CHECK(*names == "1\tmodel\n2\t\n10\tscratch\n");
  CHECK_FALSE(key_table(leases, "id,labl").ok());
  CHECK_FALSE(key_table(leases, ",").ok());
}

TEST_CASE("Table: on a narrow terminal words are cut, numbers are not; in a pipe nothing is") {
  const StyleScope scope;
  const std::vector<std::vector<std::string>> rows = {
      {"gr\xc3\xbc\xc3\x9f"
       "e-from-a-long-label",
       "1.5 GiB", "yes"}};
  output_style().columns = 0;
  CHECK(format_table({"LABEL", "SIZE", "X"}, rows).find("long-label") != std::string::npos);
  output_style().columns = 24;
  CHECK(format_table({"LABEL", "SIZE", "X"}, rows) ==
        "LABEL          SIZE  X\n"
        "gr\xc3\xbc\xc3\x9f"
        "e-fro\xe2\x80\xa6  1.5 GiB  yes\n");
  // Never below a few letters, even where the line is then too long.
  output_style().columns = 1;
  CHECK(format_table({"LABEL"}, {{"123456789a"}}) == "LABEL\n1234567\xe2\x80\xa6\n");
}

TEST_CASE("Table: what means trouble has a colour, where there are colours") {
  const StyleScope scope;
  output_style().colour = false;
  CHECK(format_table({"STATE"}, {{"failed"}}) == "STATE\nfailed\n");
  output_style().colour = true;
  CHECK(format_table({"STATE"}, {{"failed"}}) == "STATE\n\x1b[31mfailed\x1b[0m\n");
  CHECK(format_table({"STATE"}, {{"in service, absent"}}) == "STATE\n\x1b[31min service, absent\x1b[0m\n");
  CHECK(format_table({"STATE"}, {{"away, fenced in 3 s"}}) == "STATE\n\x1b[33maway, fenced in 3 s\x1b[0m\n");
  CHECK(format_table({"STATE"}, {{"failed-job"}}) == "STATE\nfailed-job\n");
  CHECK(set_colour("never"));
  CHECK(!output_style().colour);
  CHECK(!set_colour("blue"));
}

TEST_CASE("YAML: nested values, texts that are no words, nothing that could be read otherwise") {
  const nlohmann::json document = {{"leases",
                                    {{{"id", 1}, {"extents", {{{"device", "emu:a"}, {"n", 0}}}}},
                                     {{"id", 2}, {"extents", nlohmann::json::array()}}}},
                                   {"no", "no"},
                                   {"text", "a: \"b\"\n- c"},
                                   {"none", nullptr},
                                   {"empty", nlohmann::json::object()},
                                   {"nested", {{1, 2}, {3}}}};
  CHECK(to_yaml(document) ==
        "---\n"
        "empty: {}\n"
        "leases:\n"
        "- extents:\n"
        "  - device: \"emu:a\"\n"
        "    \"n\": 0\n"
        "  id: 1\n"
        "- extents: []\n"
        "  id: 2\n"
        "nested:\n"
        "-\n"
        "  - 1\n"
        "  - 2\n"
        "-\n"
        "  - 3\n"
        "\"no\": \"no\"\n"
        "none: null\n"
        "text: \"a: \\\"b\\\"\\n- c\"\n");
  CHECK(to_yaml(nlohmann::json::array({1})) == "---\n- 1\n");
  CHECK(to_yaml("x") == "--- \"x\"\n");
}
