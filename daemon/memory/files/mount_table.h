// SPDX-License-Identifier: Apache-2.0
// The mounted file systems, from /proc/self/mountinfo.
//
// Threads   Pure functions, but for find_mount, which reads /proc.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::daemon {

struct Mount {
  std::string point;          // absolute path, unescaped
  std::string type;           // "tmpfs", ...
  std::string source;         // what was named at mounting
  std::string super_options;  // comma-separated, as "rw,size=4194304k,mode=700,huge=always"

  // The value of `key=value` in super_options; nullopt when it is not there.
  std::optional<std::string> option(std::string_view key) const;
};

// Parses one line; nullopt when it is not of mountinfo's form.
std::optional<Mount> parse_mount(std::string_view line);

// The mount that `path` (absolute, resolved) lies in: the longest matching point, and of several stacked
// ones the last.
std::optional<Mount> mount_of(std::string_view path, const std::vector<Mount>& mounts);

// The same, from the running kernel.
std::optional<Mount> find_mount(std::string_view path);

}  // namespace terrace::daemon
