// SPDX-License-Identifier: Apache-2.0
#include "daemon/fsck/command.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "core/base/clock.h"
#include "core/base/unique_fd.h"
#include "daemon/fsck/fsck.h"
#include "daemon/fsck/node_check.h"
#include "daemon/fsck/store_copy.h"
#include "daemon/memory/files/object_file.h"
#include "daemon/memory/files/owner_file.h"
#include "daemon/memory/machine/hardware.h"
#include "daemon/model/kinds.h"

namespace terrace::daemon {
namespace {

constexpr int exit_clean = 0;
constexpr int exit_errors = 1;
constexpr int exit_cannot_check = 2;

struct Report {
  std::string object_directory, store;
  size_t leases = 0, devices = 0, objects = 0;
  ProcessScan scan;
  std::vector<Finding> findings;

  size_t count(Severity severity) const {
    size_t n = 0;
    for (const Finding& finding : findings) n += finding.severity == severity;
    return n;
  }
};

// Where ObjectDirectory::prepare would have put the objects, without making anything.
std::string object_directory_of(const DaemonConfig& config) {
  if (!config.object_directory.empty()) return config.object_directory;
  std::string mounted = config.runtime_directory + "/objects";
  struct stat status {};
  if (::stat(mounted.c_str(), &status) == 0) return mounted;
  return shared_memory_directory(config.runtime_directory);
}

struct Outside {
  std::vector<ObservedObject> objects;
  std::vector<SeenDevice> devices;
};

Result<Outside> look_outside(const DaemonConfig& config, const std::string& path) {
  Outside outside;
  const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory.valid() && errno != ENOENT)
    return os_error(errno, "fsck", "cannot open the object directory " + path);
  if (directory.valid()) {
    TERRACE_ASSIGN_OR_RETURN(outside.objects, list_objects(directory.get(), path));
  }
  for (const EmulatedDevice& device : config.emulated) {
    if (directory.valid() && unplugged(directory.get(), device.name)) continue;
    outside.devices.push_back({.serial = "emu:" + device.name,
                               .backend = std::string(kinds::emulated),
                               .capacity_bytes = device.size_bytes,
                               .granule_bytes = config.granule_bytes,
                               .detail = {}});
  }
  return outside;
}

// What the backends of real memory see, as they would at a start; they change nothing.
Status look_at_hardware(const DaemonConfig& config, const Image& image, Outside& outside) {
  const auto hardware = make_hardware(
      {.runtime_directory = config.runtime_directory, .boot_id = read_boot_id(), .read_only = true});
  BackendSet backends;
  hardware->add_to(backends);
  backends.know_devices(known_devices(image));
  TERRACE_RETURN_IF_ERROR(backends.refresh());
  backends.know_objects(known_objects(image));
  TERRACE_ASSIGN_OR_RETURN(const auto objects, backends.list());
  outside.objects.insert(outside.objects.end(), objects.begin(), objects.end());
  for (SeenDevice& device : backends.discover()) outside.devices.push_back(std::move(device));
  return {};
}

// Memory nodes: their objects are files, there also for those who may not touch hardware.
Status look_at_nodes(const DaemonConfig& config, const Image& image, Outside& outside) {
  TERRACE_ASSIGN_OR_RETURN(const auto objects, list_node_objects(config.runtime_directory));
  outside.objects.insert(outside.objects.end(), objects.begin(), objects.end());
  for (SeenDevice& node : discover_nodes(known_devices(image))) outside.devices.push_back(std::move(node));
  return {};
}

void add_circumstances(const ProcessScan& scan, std::vector<Finding>& findings) {
  if (scan.unreadable > 0) {
    findings.push_back(
        {Severity::note, "processes",
         std::to_string(scan.unreadable) + " of " + std::to_string(scan.processes) + " could not be looked at",
         "run it as root to see who maps what"});
  }
  if (!scan.complete) {
    findings.push_back({Severity::note, "processes", "there are more than could be looked at in time",
                        "run it again when the machine is less busy"});
  }
}

Finding store_finding(const Error& error) {
  std::string repair =
      error.code == ErrorCode::version_mismatch
          ? "run the terraced that it names, or move the state's files away to begin anew"
          : "nothing is granted from such a store. Restore a copy of the state's files, or move them away to "
            "begin anew";
  if (error.code == ErrorCode::not_found) repair = "name the right one with --state or --config";
  if (error.code == ErrorCode::permission_denied) repair = "run it as the user that terraced runs as";
  return {Severity::error, "store", error.to_string(), std::move(repair)};
}

// A start with this store would be refused.
void check_owner(const StoreId& store, const std::string& path, std::vector<Finding>& findings) {
  const UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!directory.valid()) return;
  const auto owner = read_owner({directory.get(), path});
  if (owner.ok() && (!owner->has_value() || (*owner)->store == store)) return;
  findings.push_back(
      {Severity::error, "object directory",
       owner.ok() ? path + " belongs to the store " + store_id_text((*owner)->store) + " (" + (*owner)->words +
                        "), not to this one"
                  : owner.error().detail,
       "name the state file of its store with --state or --config; is its file system mounted? To "
       "destroy that memory and take it over: start terraced once with --destroy-orphans"});
}

void print_json(const DaemonConfig& config, const Report& report) {
  std::string out = "{\"state\": " + json_quoted(config.state_path) +
                    ", \"store\": " + (report.store.empty() ? "null" : json_quoted(report.store)) +
                    ", \"object_directory\": " + json_quoted(report.object_directory) +
                    ", \"leases\": " + std::to_string(report.leases) +
                    ", \"devices\": " + std::to_string(report.devices) +
                    ", \"objects\": " + std::to_string(report.objects) +
                    ", \"processes\": " + std::to_string(report.scan.processes) +
                    ", \"errors\": " + std::to_string(report.count(Severity::error)) +
                    ", \"warnings\": " + std::to_string(report.count(Severity::warning)) +
                    ", \"notes\": " + std::to_string(report.count(Severity::note)) + ", \"findings\": [";
  const char* comma = "";
  for (const Finding& finding : report.findings) {
    out += comma;
    out += "\n  {\"severity\": " + json_quoted(std::string(severity_name(finding.severity))) +
           ", \"subject\": " + json_quoted(finding.subject) + ", \"what\": " + json_quoted(finding.what) +
           ", \"repair\": " + json_quoted(finding.repair) + "}";
    comma = ",";
  }
  out += report.findings.empty() ? "]}\n" : "\n]}\n";
  std::fputs(out.c_str(), stdout);
}

void print_text(const DaemonConfig& config, const Report& report) {
  for (const Finding& finding : report.findings) {
    std::printf("%-8s %s: %s\n         fix: %s\n", std::string(severity_name(finding.severity)).c_str(),
                finding.subject.c_str(), finding.what.c_str(), finding.repair.c_str());
  }
  if (!report.findings.empty()) std::printf("\n");
  if (!report.store.empty()) std::printf("store %s\n", report.store.c_str());
  std::printf("%s: %zu leases, %zu devices; %zu objects in %s; %llu processes\n", config.state_path.c_str(),
              report.leases, report.devices, report.objects, report.object_directory.c_str(),
              static_cast<unsigned long long>(report.scan.processes));
  std::printf("%zu errors, %zu warnings, %zu notes; nothing was changed\n", report.count(Severity::error),
              report.count(Severity::warning), report.count(Severity::note));
}

}  // namespace

std::string json_quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    char escape[8];
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

int run_fsck(const DaemonConfig& config, bool json) {
  Report report;
  report.object_directory = object_directory_of(config);
  auto stored = read_store(config.state_path);
  Result<Image> image = stored.ok() ? Result<Image>(std::move(stored->image)) : Result<Image>(stored.error());
  if (!image.ok() &&
      (image.error().code == ErrorCode::busy || image.error().code == ErrorCode::capacity_exhausted)) {
    std::fprintf(stderr, "terraced: %s\n", image.error().to_string().c_str());
    return exit_cannot_check;
  }
  auto outside = look_outside(config, report.object_directory);
  if (outside.ok() && image.ok() && config.hardware && hardware_usable()) {
    if (Status seen = look_at_hardware(config, *image, *outside); !seen.ok()) outside = seen.error();
  }
  if (outside.ok() && image.ok() && config.hardware) {
    if (Status seen = look_at_nodes(config, *image, *outside); !seen.ok()) outside = seen.error();
  }
  if (!outside.ok()) {
    std::fprintf(stderr, "terraced: %s\n", outside.error().to_string().c_str());
    return exit_cannot_check;
  }
  const bool dax = image.ok() && has_dax_devices(*image);
  if (auto scanned = scan_processes(report.object_directory, std::chrono::seconds(5), dax); scanned.ok())
    report.scan = std::move(*scanned);
  for (LiveMapping& mapping : scan_node_mappings(config.runtime_directory))
    report.scan.mappings.push_back(std::move(mapping));
  report.objects = outside->objects.size();
  if (image.ok()) {
    report.store = store_id_text(stored->id);
    report.leases = image->leases.size();
    report.devices = image->devices.size();
    report.findings = check_consistency(*image, outside->objects, outside->devices, report.scan.mappings,
                                        {.boot_id = read_boot_id()});
    check_owner(stored->id, report.object_directory, report.findings);
  } else {
    report.findings.push_back(store_finding(image.error()));
  }
  add_circumstances(report.scan, report.findings);
  json ? print_json(config, report) : print_text(config, report);
  return report.count(Severity::error) > 0 ? exit_errors : exit_clean;
}

}  // namespace terrace::daemon
