// SPDX-License-Identifier: Apache-2.0
#include "daemon/doctor/checks.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

namespace terrace::doctor {
namespace {

constexpr const char* where = "doctor";

struct Placed {
  std::string_view name;
  CheckGroup group;
};

constexpr Placed placed[] = {
    {"kernel", CheckGroup::machine},
    {"io_uring", CheckGroup::machine},
    {"time_slice", CheckGroup::machine},
    {"processor", CheckGroup::machine},
    {"cuda", CheckGroup::machine},
    {"memory", CheckGroup::memory},
    {"dev_shm", CheckGroup::memory},
    {"shmem_huge_pages", CheckGroup::memory},
    {"tmpfs_huge_pages", CheckGroup::memory},
    {"hugetlb", CheckGroup::memory},
    {"max_map_count", CheckGroup::limits},
    {"overcommit", CheckGroup::limits},
    {"open_files", CheckGroup::limits},
    {"userfaultfd", CheckGroup::migration},
    {"userfaultfd_shmem", CheckGroup::migration},
    {"userfaultfd_device", CheckGroup::migration},
    {"pagemap_scan", CheckGroup::migration},
    {"migration", CheckGroup::migration},
    {"cxl", CheckGroup::hardware},
    {"cxl_modules", CheckGroup::hardware},
    {"dax", CheckGroup::hardware},
    {"numa", CheckGroup::hardware},
    {"cxl_driver", CheckGroup::hardware},
    {"cxl_ports", CheckGroup::hardware},
    {"cxl_decoders", CheckGroup::hardware},
    {"cxl_regions", CheckGroup::hardware},
    {"soft_reserved", CheckGroup::hardware},
    {"dax_mode", CheckGroup::hardware},
    {"dax_alignment", CheckGroup::hardware},
    {"auto_online", CheckGroup::hardware},
    {"privilege", CheckGroup::hardware},
    {"socket", CheckGroup::access},
    {"certificates", CheckGroup::access},
};

CheckState state_of(const std::vector<Check>& checks, const std::string& name) {
  const auto found =
      std::find_if(checks.begin(), checks.end(), [&](const Check& check) { return check.name == name; });
  return found == checks.end() ? CheckState::missing : found->state;
}

// Up to the next zero; none: there is none.
std::optional<std::string> next_text(std::string_view& bytes) {
  const size_t end = bytes.find('\0');
  if (end == std::string_view::npos) return std::nullopt;
  std::string text(bytes.substr(0, end));
  bytes.remove_prefix(end + 1);
  return text;
}

}  // namespace

const char* state_name(CheckState state) {
  switch (state) {
    case CheckState::ok: return "ok";
    case CheckState::limited: return "limited";
    case CheckState::missing: return "missing";
  }
  return "missing";
}

const char* group_name(CheckGroup group) {
  switch (group) {
    case CheckGroup::machine: return "machine";
    case CheckGroup::memory: return "memory";
    case CheckGroup::limits: return "limits";
    case CheckGroup::migration: return "migration";
    case CheckGroup::hardware: return "hardware";
    case CheckGroup::access: return "access";
  }
  return "machine";
}

CheckGroup group_of(std::string_view name) {
  const auto* const at =
      std::find_if(std::begin(placed), std::end(placed), [&](const Placed& one) { return one.name == name; });
  return at == std::end(placed) ? CheckGroup::machine : at->group;
}

Check check_migration(const std::vector<Check>& checks) {
  Check check{.name = "migration"};
  const bool own = state_of(checks, "userfaultfd") == CheckState::ok;
  const bool given = state_of(checks, "userfaultfd_device") == CheckState::ok;
  const bool switches = state_of(checks, "userfaultfd_shmem") == CheckState::ok || given;
  const bool looks = state_of(checks, "pagemap_scan") == CheckState::ok;
  std::string obstacles;
  const auto lacks = [&obstacles](const char* name) {
    obstacles += (obstacles.empty() ? "" : ", ") + std::string(name);
  };
  if (!own && !given) lacks("a userfaultfd (userfaultfd, userfaultfd_device)");
  if (!switches) lacks("write protection of shared memory (userfaultfd_shmem)");
  if (!looks) lacks("a way to see which granules are in use (pagemap_scan)");
  if (obstacles.empty()) {
    check.found = own ? "this user makes its own userfaultfd" : "this user has terraced's device";
    check.meaning = "hot granules rise and cold ones sink while programs run; `terrace tier status` shows it";
    return check;
  }
  check.state = CheckState::limited;
  check.found = "lacking: " + obstacles;
  check.meaning = "tiered ranges work, and their granules stay where they are";
  check.fix = "see the checks named";
  return check;
}

std::vector<Check> run_checks(std::vector<Check> of_user) {
  const inventory::Inventory inventory = inventory::take_inventory();
  std::vector<Check> checks = {
      check_kernel(),           check_memory(),       check_dev_shm(),      check_shmem_huge_pages(),
      check_tmpfs_huge_pages(), check_hugetlb(),      check_userfaultfd(),  check_userfaultfd_shmem(),
      check_pagemap_scan(),     check_io_uring(),     check_time_slice(),   check_map_count(),
      check_overcommit(),       check_open_files(),   check_cxl(inventory), check_cxl_modules(inventory),
      check_dax(inventory),     check_numa(inventory)};
  for (Check& check : check_hardware(inventory)) checks.push_back(std::move(check));
  for (Check& check : of_user) checks.push_back(std::move(check));
  checks.push_back(check_migration(checks));
  checks.push_back(check_processor());
  checks.push_back(check_cuda());
  return checks;
}

bool basic_service_possible(const std::vector<Check>& checks) {
  return std::none_of(checks.begin(), checks.end(),
                      [](const Check& check) { return check.essential && check.state == CheckState::missing; });
}

// Each text with a zero behind it; a zero within one ends it there.
std::string pack(const std::vector<Check>& checks) {
  std::string bytes;
  for (const Check& check : checks) {
    bytes += static_cast<char>('0' + static_cast<int>(check.state));
    bytes += check.essential ? '1' : '0';
    for (const std::string* text : {&check.name, &check.found, &check.meaning, &check.fix})
      (bytes += text->c_str()) += '\0';
  }
  return bytes;
}

Result<std::vector<Check>> unpack(std::string_view bytes) {
  const Error broken{.code = ErrorCode::corrupt, .where = where, .detail = "the checks came in no known form"};
  std::vector<Check> checks;
  while (!bytes.empty()) {
    if (bytes.size() < 2 || bytes[0] < '0' || bytes[0] > '2' || (bytes[1] != '0' && bytes[1] != '1'))
      return broken;
    Check check;
    check.state = static_cast<CheckState>(bytes[0] - '0');
    check.essential = bytes[1] == '1';
    bytes.remove_prefix(2);
    for (std::string* text : {&check.name, &check.found, &check.meaning, &check.fix}) {
      std::optional<std::string> next = next_text(bytes);
      if (!next) return broken;
      *text = std::move(*next);
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string selected_word(const std::string& line) {
  const size_t begin = line.find('[');
  const size_t end = line.find(']', begin == std::string::npos ? 0 : begin);
  if (begin == std::string::npos || end == std::string::npos) return line;
  return line.substr(begin + 1, end - begin - 1);
}

std::string comma_list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) (text += text.empty() ? "" : ", ") += word;
  return text;
}

}  // namespace terrace::doctor
