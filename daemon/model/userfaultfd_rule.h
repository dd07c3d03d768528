// SPDX-License-Identifier: Apache-2.0
// To whom the machine's /dev/userfaultfd is handed: nobody, whom the kernel would give a userfaultfd by itself, or
// every program with a tenant. With it an unprivileged program can make the kernel wait inside a system call.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace terrace::daemon {

enum class UserfaultfdRule : uint8_t { none, kernel, all };

constexpr UserfaultfdRule userfaultfd_rules[] = {UserfaultfdRule::none, UserfaultfdRule::kernel,
                                                 UserfaultfdRule::all};

constexpr const char* userfaultfd_rule_name(UserfaultfdRule rule) {
  switch (rule) {
    case UserfaultfdRule::none: return "none";
    case UserfaultfdRule::kernel: return "kernel";
    case UserfaultfdRule::all: return "all";
  }
  return "kernel";
}

inline std::optional<UserfaultfdRule> userfaultfd_rule_of(std::string_view name) {
  for (const UserfaultfdRule rule : userfaultfd_rules)
    if (name == userfaultfd_rule_name(rule)) return rule;
  return std::nullopt;
}

}  // namespace terrace::daemon
