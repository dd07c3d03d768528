// SPDX-License-Identifier: Apache-2.0
#include "libclient/kv/joined/member_list.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "libclient/kv/rules.h"

namespace terrace::kv {
namespace {

constexpr std::string_view list_heading = "terrace-kv-members 1 ";
static_assert(kv_members_max * (kv_member_where_bytes_max + 64) + 256 <= policy_text_max,
              "the longest list is read as any of the space's own blocks");

std::string hex_number(uint64_t number) {
  char text[16];
  const auto end = std::to_chars(text, text + sizeof text, number, 16).ptr;
  return {text, end};
}

// The word before `end`, which `text` loses together with it, as a number.
std::optional<uint64_t> take_number(std::string_view* text, char end, int base) {
  const size_t at = text->find(end);
  if (at == std::string_view::npos) return std::nullopt;
  uint64_t number = 0;
  const auto [stop, error] = std::from_chars(text->data(), text->data() + at, number, base);
  if (error != std::errc() || stop != text->data() + at) return std::nullopt;
  text->remove_prefix(at + 1);
  return number;
}

// "filling ID WHERE" or "leaving ID WHERE"
std::optional<ListedMember> member_of_line(std::string_view line) {
  ListedMember member;
  const size_t at = line.find(' ');
  const std::string_view state = line.substr(0, at);
  if (at == std::string_view::npos || (state != "filling" && state != "leaving")) return std::nullopt;
  line.remove_prefix(at + 1);
  const std::optional<uint64_t> id = take_number(&line, ' ', 16);
  if (!id || *id == 0 || !check_where(line).ok()) return std::nullopt;
  member.id = *id;
  member.leaving = state == "leaving";
  member.where = line;
  return member;
}

}  // namespace

const ListedMember* MemberList::find(uint64_t id) const {
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const auto& one) { return one.id == id; });
  return found == members.end() ? nullptr : &*found;
}

const ListedMember* MemberList::find(std::string_view where) const {
  const auto found =
      std::find_if(members.begin(), members.end(), [&](const auto& one) { return one.where == where; });
  return found == members.end() ? nullptr : &*found;
}

std::string text_of(const MemberList& list) {
  std::string text = std::string(list_heading) + std::to_string(list.generation) + ' ' + hex_number(list.edit) +
                     ' ' + hex_number(list.space) + ' ' + hex_number(list.self) + '\n';
  for (const ListedMember& member : list.members)
    text += (member.leaving ? "leaving " : "filling ") + hex_number(member.id) + ' ' + member.where + '\n';
  return text;
}

std::optional<MemberList> member_list_of(std::string_view text) {
  if (!text.starts_with(list_heading)) return std::nullopt;
  text.remove_prefix(list_heading.size());
  MemberList list;
  const auto generation = take_number(&text, ' ', 10), edit = take_number(&text, ' ', 16),
             space = take_number(&text, ' ', 16), self = take_number(&text, '\n', 16);
  if (!generation || !edit || !space || !self || *self == 0) return std::nullopt;
  list = {.generation = *generation, .edit = *edit, .space = *space, .self = *self};
  std::unordered_set<uint64_t> ids;
  std::unordered_set<std::string> places;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos || list.members.size() == kv_members_max) return std::nullopt;
    std::optional<ListedMember> member = member_of_line(text.substr(0, end));
    if (!member || !ids.insert(member->id).second || !places.insert(member->where).second) return std::nullopt;
    list.members.push_back(std::move(*member));
    text.remove_prefix(end + 1);
  }
  return list;
}

Status check_where(std::string_view where) {
  const bool controls =
      std::any_of(where.begin(), where.end(), [](unsigned char byte) { return byte < 32 || byte == 127; });
  if (!where.empty() && where.size() <= kv_member_where_bytes_max && !controls) return {};
  return Error{.code = ErrorCode::invalid_argument,
               .where = "JoinedKvSpace",
               .detail = "KV space: a member is called by 1 to " + std::to_string(kv_member_where_bytes_max) +
                         " bytes without control characters: a lease's id or label, or a path"};
}

}  // namespace terrace::kv
