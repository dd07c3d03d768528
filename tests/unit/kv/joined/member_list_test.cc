// SPDX-License-Identifier: Apache-2.0
// Lists of members as text: what is written is read, and nothing else.
#include <doctest/doctest.h>

#include "core/base/prng.h"
#include "libclient/kv/joined/member_list.h"

namespace terrace::kv {
namespace {

MemberList some_list() {
  return {.generation = 12,
          .edit = 0xfedcba9876543210ull,
          .space = 7,
          .self = 2,
          .members = {{.id = 1, .where = "cache"}, {.id = 2, .leaving = true, .where = "/dev/shm/a b"}}};
}

TEST_CASE("MemberList: what is written is read") {
  const auto read = member_list_of(text_of(some_list()));
  REQUIRE(read);
  CHECK(read->generation == 12);
  CHECK(read->edit == 0xfedcba9876543210ull);
  CHECK(read->space == 7);
  CHECK(read->self == 2);
  CHECK(read->members == some_list().members);
  CHECK(read->find(2)->where == "/dev/shm/a b");
  CHECK(read->find("cache")->id == 1);
  CHECK(read->find("none") == nullptr);
}

TEST_CASE("MemberList: of two lists one is newer, whoever asks") {
  MemberList one = some_list(), other = some_list();
  CHECK_FALSE(one.is_newer_than(other));
  ++other.edit;
  CHECK(other.is_newer_than(one));
  CHECK_FALSE(one.is_newer_than(other));
  ++one.generation;
  CHECK(one.is_newer_than(other));
}

TEST_CASE("MemberList: what makes no sense is none") {
  const std::string good = text_of(some_list());
  for (size_t cut = 0; cut < good.size(); ++cut) {
    const auto read = member_list_of(good.substr(0, cut));
    if (read) CHECK(good[cut - 1] == '\n');  // fewer members, whole lines
  }
  const std::string head = "terrace-kv-members 1 1 2 3 4\n";
  CHECK(member_list_of(head)->members.empty());
  for (const char* line : {"filling 0 a\n", "gone 1 a\n", "filling 1 \n", "filling x a\n", "filling 1 a\tb\n",
                           "filling 1 a\nfilling 1 b\n", "filling 1 a\nfilling 2 a\n", "filling 1 a"})
    CHECK_MESSAGE(!member_list_of(head + line), line);
  CHECK_FALSE(member_list_of("terrace-kv-members 2 1 2 3 4\n"));
  CHECK_FALSE(member_list_of("terrace-kv-members 1 1 2 3 0\n"));
  CHECK_FALSE(member_list_of("terrace-kv-members 1 99999999999999999999 2 3 4\n"));
  std::string many = head;
  for (size_t index = 1; index <= kv_members_max; ++index)
    many += "filling " + std::to_string(index) + " m" + std::to_string(index) + "\n";
  CHECK(member_list_of(many)->members.size() == kv_members_max);
  CHECK_FALSE(member_list_of(many + "filling ffff x\n"));
  CHECK_FALSE(member_list_of(head + "filling 1 " + std::string(kv_member_where_bytes_max + 1, 'x') + "\n"));
}

TEST_CASE("MemberList: any bytes are read without harm, and what is taken is written as it was read") {
  Prng prng(3);
  const std::string good = text_of(some_list());
  int taken = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = good;
    for (uint64_t change = 0; change <= prng.below(3); ++change)
      text[prng.below(text.size())] = static_cast<char>(prng.below(256));
    const auto read = member_list_of(text);
    if (!read) continue;
    ++taken;
    const auto again = member_list_of(text_of(*read));
    REQUIRE(again);
    CHECK(again->members == read->members);
    CHECK(again->generation == read->generation);
  }
  CHECK(taken > 100);
}

}  // namespace
}  // namespace terrace::kv
