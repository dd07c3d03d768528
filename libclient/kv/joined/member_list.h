// SPDX-License-Identifier: Apache-2.0
// The list of a space's members, as text, which a block of each member's own has. Pure.
//
//   invariant   of two lists of one space the one of the higher generation counts; of one generation, that of the
//               higher edit. So all who see both agree.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "terrace/kv_members.h"

namespace terrace::kv {

struct ListedMember {
  uint64_t id = 0;  // never 0; of a member, not of its memory: what is formatted anew has another one
  bool leaving = false;
  std::string where;
  bool operator==(const ListedMember&) const = default;
};

struct MemberList {
  uint64_t generation = 0;
  uint64_t edit = 0;   // random: tells two edits of one generation apart
  uint64_t space = 0;  // random: lists of other spaces never count
  uint64_t self = 0;   // the id of the member that this copy is in; it may have left
  std::vector<ListedMember> members = {};

  const ListedMember* find(uint64_t id) const;
  const ListedMember* find(std::string_view where) const;
  bool is_newer_than(const MemberList& other) const {
    return generation != other.generation ? generation > other.generation : edit > other.edit;
  }
};

std::string text_of(const MemberList& list);
// Nothing when it makes no sense.
std::optional<MemberList> member_list_of(std::string_view text);
// Errors    invalid_argument
Status check_where(std::string_view where);

}  // namespace terrace::kv
