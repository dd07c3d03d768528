// SPDX-License-Identifier: Apache-2.0
#include "cli/containers/cdi_document.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

namespace terrace::cli {
namespace {

constexpr std::string_view file_begins = "terrace.dev-lease-";
constexpr std::string_view file_ends = ".json";

bool alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

nlohmann::json mount(const std::string& from, const std::string& to, bool read_only) {
  return {{"hostPath", from},
          {"containerPath", to},
          {"options", {"bind", read_only ? "ro" : "rw", "nosuid", "nodev", "noexec"}}};
}

// The id in a file's name; 0: it is none of ours.
uint64_t id_of_file(const std::string& name) {
  if (!name.starts_with(file_begins) || !name.ends_with(file_ends)) return 0;
  const char* const begin = name.data() + file_begins.size();
  const char* const end = name.data() + name.size() - file_ends.size();
  uint64_t id = 0;
  const auto read = std::from_chars(begin, end, id);
  return begin < end && read.ec == std::errc() && read.ptr == end ? id : 0;
}

bool has_device(const std::filesystem::path& file, const std::string& name) {
  std::ifstream in(file);
  const nlohmann::json document = nlohmann::json::parse(in, nullptr, false);
  if (!document.is_object() || !document.contains("devices") || !document["devices"].is_array()) return false;
  for (const nlohmann::json& device : document["devices"])
    if (device.is_object() && device.contains("name") && device["name"] == name) return true;
  return false;
}

}  // namespace

bool valid_cdi_name(const std::string& name) {
  if (name.empty() || !alphanumeric(name.front()) || !alphanumeric(name.back())) return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return alphanumeric(c) || c == '_' || c == '-' || c == '.' || c == ':'; });
}

std::string cdi_name_of(uint64_t id, const std::string& label) {
  return valid_cdi_name(label) ? label : "lease-" + std::to_string(id);
}

nlohmann::json cdi_document(const CdiLease& lease) {
  nlohmann::json mounts = nlohmann::json::array();
  nlohmann::json environment = {"TERRACE_LEASE_ID=" + std::to_string(lease.id),
                                "TERRACE_LEASE_LABEL=" + lease.label,
                                "TERRACE_LEASE_BYTES=" + std::to_string(lease.bytes)};
  if (!lease.host_path.empty()) {
    mounts.push_back(mount(lease.host_path, lease.path, lease.read_only));
    environment.push_back("TERRACE_LEASE_PATH=" + lease.path);
  }
  if (!lease.host_socket.empty()) {
    // Writable: connecting to a socket is a write to it, and a read-only mount forbids nothing else of it.
    mounts.push_back(mount(lease.host_socket, lease.socket_mount, false));
    environment.push_back("TERRACE_SOCKET=" + lease.socket);
  }
  return {
      {"cdiVersion", "0.5.0"},
      {"kind", cdi_kind},
      {"devices", {{{"name", lease.name}, {"containerEdits", {{"env", environment}, {"mounts", mounts}}}}}}};
}

std::string cdi_file(const std::string& directory, uint64_t id) {
  return directory + "/" + std::string(file_begins) + std::to_string(id) + std::string(file_ends);
}

Result<uint64_t> find_cdi_file(const std::string& directory, const std::string& name) {
  std::error_code failed;
  for (const auto& file : std::filesystem::directory_iterator(directory, failed))
    if (const uint64_t id = id_of_file(file.path().filename().string());
        id != 0 && has_device(file.path(), name))
      return id;
  if (failed && failed != std::errc::no_such_file_or_directory)
    return os_error(failed.value(), "terrace lease cdi", "cannot look into " + directory);
  return uint64_t{0};
}

}  // namespace terrace::cli
