// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/numa/numa.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "core/base/units.h"
#include "daemon/memory/files/object_file.h"

namespace terrace::daemon {
namespace {

constexpr std::string_view serial_prefix = "numa:node";
constexpr std::string_view object_prefix = "numa:";

// What other programs have of a node without anybody noticing: page lists of the processors, a few libraries.
constexpr uint64_t others_unnoticed_bytes = 16 * mib;

// The file's name of an object: without its kind.
Result<std::string> file_of(const std::string& name, const char* where) {
  if (!name.starts_with(object_prefix)) return bad_object_name(name, where);
  return name.substr(object_prefix.size());
}

// A failure for want of descriptors or memory: it says nothing of what was asked for.
bool passes(const Error& error) {
  const int code = error.os_errno;
  return code == EMFILE || code == ENFILE || code == ENOMEM || code == EINTR || code == EAGAIN;
}

Error not_seen(const std::string& what) {
  return os_error(EAGAIN, "NumaBackend::refresh", what + " cannot be read");
}

// Whether the kernel keeps its own data away from the node's memory: all of it is in zone Movable.
// "Node 1, zone  Movable" ... "        present  262144"
bool all_movable(int node, const std::string& root) {
  std::ifstream file(root + "/proc/zoneinfo");
  bool wanted = false;
  bool movable = false;
  for (std::string line; std::getline(file, line);) {
    int number = 0;
    char zone[32] = "";
    if (std::sscanf(line.c_str(), "Node %d, zone %31s", &number, zone) == 2) {
      wanted = number == node;
      movable = std::string_view(zone) == "Movable";
    }
    unsigned long long pages = 0;
    if (wanted && !movable && std::sscanf(line.c_str(), " managed %llu", &pages) == 1 && pages > 0)
      return false;
  }
  return true;
}

}  // namespace

std::string numa_serial(int node) {
  return std::string(serial_prefix) + std::to_string(node);
}

std::optional<int> numa_node_of(std::string_view serial) {
  if (!serial.starts_with(serial_prefix)) return std::nullopt;
  const std::string_view digits = serial.substr(serial_prefix.size());
  int node = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), node);
  if (error != std::errc{} || end != digits.data() + digits.size() || node < 0) return std::nullopt;
  return node;
}

NumaBackend::NumaBackend(NumaOptions options, RamKernel* kernel)
    : options_(std::move(options)), has_ram_(kernel != nullptr) {
  if (kernel != nullptr) ram_.emplace(*kernel, options_.record);
}

// --- devices --------------------------------------------------------------------------------------------

// Zones are long to read where there are many processors, and change only with the memory.
Result<std::map<int, NumaBackend::Seen>> NumaBackend::look_at_nodes() const {
  std::map<int, Seen> before, found;
  {
    const MutexLock lock(mutex_);
    before = seen_;
  }
  const std::vector<int> online = os::online_nodes(options_.root);
  // Every machine has a node: where none is seen they could not be looked at, for want of descriptors, say.
  if (online.empty()) return not_seen("the list of memory nodes");
  for (const int node : online) {
    const os::NodeAttributes attributes = os::node_attributes(node, options_.root);
    std::error_code failed;
    const std::string folder = options_.root + "/sys/devices/system/node/node" + std::to_string(node);
    if (!attributes.exists && std::filesystem::exists(folder, failed))
      return not_seen("memory node " + std::to_string(node));
    if (attributes.has_cpus || attributes.total_bytes == 0) continue;
    const auto known = before.find(node);
    const bool same = known != before.end() && known->second.attributes.total_bytes == attributes.total_bytes;
    found[node] = {.attributes = attributes,
                   .movable = same ? known->second.movable : all_movable(node, options_.root),
                   .problem = {}};
  }
  return found;
}

Status NumaBackend::refresh() {
  finish_recorded_ram();
  TERRACE_ASSIGN_OR_RETURN(auto seen, look_at_nodes());
  {
    const MutexLock lock(opening_);
    open_known(seen);
    close_unknown();
  }
  const MutexLock lock(mutex_);
  seen_ = std::move(seen);
  return {};
}

// Not behind an online() or offline() on the other worker, which can take its time: this one has fences to do.
void NumaBackend::finish_recorded_ram() {
  if (!has_ram_ || !ram_mutex_.try_lock()) return;
  const MutexLock lock(ram_mutex_, std::adopt_lock);
  ram_->finish_recorded();
  std::vector<SystemRam::Problem> problems = ram_->problems();
  const MutexLock answers(mutex_);
  problems_ = std::move(problems);
}

// Every adopted node that is there gets its directory, where the objects of an earlier start are found again.
void NumaBackend::open_known(std::map<int, Seen>& seen) {
  if (!options_.open) return;
  std::vector<KnownDevice> known;
  {
    const MutexLock lock(mutex_);
    known = known_;
  }
  for (const KnownDevice& device : known) {
    const auto node = numa_node_of(device.serial);
    if (!node.has_value() || !seen.contains(*node)) continue;
    auto opened = open_node(*node, false);
    if (!opened.ok()) {
      seen[*node].problem = opened.error().detail;
      seen[*node].passes = passes(opened.error());
    } else if (const Status grown = (*opened)->grow(seen[*node].attributes.total_bytes); !grown.ok()) {
      seen[*node].problem = grown.error().detail;
    }
  }
}

// What is no longer adopted has no leases; a directory that is not empty stays.
void NumaBackend::close_unknown() {
  for (const Node& node : open_nodes()) {
    if (known_capacity(numa_serial(node->node())) != 0) continue;
    const auto objects = node->files().list();
    if (!objects.ok() || !objects->empty()) continue;
    {
      const MutexLock lock(mutex_);
      nodes_.erase(node->node());
    }
    (void)node->files().remove_directory();
  }
}

Result<NumaBackend::Node> NumaBackend::open_node(int node, bool adopting) {
  {
    const MutexLock lock(mutex_);
    if (const auto found = nodes_.find(node); found != nodes_.end()) return found->second;
  }
  const os::NodeAttributes attributes = os::node_attributes(node, options_.root);
  TERRACE_ASSIGN_OR_RETURN(const Node opened, NumaNode::open({.node = node,
                                                              .total_bytes = attributes.total_bytes,
                                                              .runtime_directory = options_.runtime_directory,
                                                              .mount = options_.mount,
                                                              .huge_pages = options_.huge_pages,
                                                              .root = options_.root}));
  std::optional<StoreClaim> claim;
  std::vector<KnownObject> objects;
  {
    const MutexLock lock(mutex_);
    claim = claim_;
    objects = known_objects_;
  }
  opened->files().know_objects(objects);
  if (claim.has_value()) TERRACE_RETURN_IF_ERROR(opened->files().claim(*claim));
  MeasuredRecord* const record = options_.measured;
  const std::string serial = numa_serial(node);
  if (record != nullptr && !attributes.hmat() &&
      (adopting || !record->find(serial, attributes.total_bytes).known()))
    record->set(serial, attributes.total_bytes, opened->measure());
  const MutexLock lock(mutex_);
  nodes_[node] = opened;
  return opened;
}

uint64_t NumaBackend::known_capacity(const std::string& serial) const {
  const MutexLock lock(mutex_);
  for (const KnownDevice& device : known_)
    if (device.serial == serial) return device.capacity_bytes;
  return 0;
}

void NumaBackend::know_devices(const std::vector<KnownDevice>& devices) {
  const MutexLock lock(mutex_);
  known_ = devices;
}

void NumaBackend::know_objects(const std::vector<KnownObject>& objects) {
  std::vector<KnownObject> files;
  for (const KnownObject& object : objects)
    if (const auto file = file_of(object.name, "NumaBackend::know_objects"); file.ok())
      files.push_back({*file, object.bytes, object.extents});
  for (const Node& node : open_nodes()) node->files().know_objects(files);
  const MutexLock lock(mutex_);
  known_objects_ = std::move(files);
}

std::string NumaBackend::detail_of(int node, const Seen& seen) const {
  const os::NodeAttributes& memory = seen.attributes;
  if (!seen.problem.empty()) return "nothing can be leased from it: " + seen.problem;
  std::string text = "memory of node " + std::to_string(node) + ", which has no CPUs; " +
                     format_size(numa_margin(memory.total_bytes)) + " of its " +
                     format_size(memory.total_bytes) + " are kept for the kernel";
  if (!seen.movable) text += "; not all of it is in zone Movable, so that the kernel's own data can be on it";
  return text;
}

std::vector<SeenDevice> NumaBackend::discover() {
  std::vector<SeenDevice> devices;
  const MutexLock lock(mutex_);
  for (const auto& [node, seen] : seen_) {
    SeenDevice device{.serial = numa_serial(node),
                      .backend = std::string(kind()),
                      .capacity_bytes = numa_capacity(seen.attributes.total_bytes),
                      .granule_bytes = limits::granule_bytes,
                      .detail = detail_of(node, seen)};
    for (const KnownDevice& known : known_)
      if (known.serial == device.serial && known.capacity_bytes <= seen.attributes.total_bytes)
        device.capacity_bytes = std::max(device.capacity_bytes, known.capacity_bytes);
    const bool used = nodes_.contains(node);
    const uint64_t others =
        seen.attributes.total_bytes - std::min(seen.attributes.total_bytes, seen.attributes.available_bytes);
    if (!used && others > others_unnoticed_bytes)
      device.detail += "; other programs have " + format_size(others) + " of it, which leases lack";
    if (device.capacity_bytes > 0) devices.push_back(std::move(device));
  }
  // What should be there and is not, so that somebody reads why.
  for (const SystemRam::Problem& problem : problems_) {
    if (problem.node < 0 || seen_.contains(problem.node)) continue;
    devices.push_back({.serial = numa_serial(problem.node),
                       .backend = std::string(kind()),
                       .capacity_bytes = 0,
                       .granule_bytes = limits::granule_bytes,
                       .detail = "should be made of " + problem.serial + ", but: " + problem.what});
  }
  return devices;
}

TierAttributes NumaBackend::attributes(const std::string& serial) const {
  const auto node = numa_node_of(serial);
  if (!node.has_value()) return {};
  const MutexLock lock(mutex_);
  const auto found = seen_.find(*node);
  if (found == seen_.end()) return {};
  const os::NodeAttributes& seen = found->second.attributes;
  const TierAttributes told{.latency_ns = seen.latency_ns,
                            .bandwidth_bytes_per_s = seen.bandwidth_bytes_per_s,
                            .node = *node,
                            .distance = seen.distance,
                            .persistent = false,
                            .source = seen.hmat() ? AttributesSource::hmat : AttributesSource::none,
                            .isolation = Isolation::node};
  return with_measured_speed(told, options_.measured, serial, seen.total_bytes);
}

Status NumaBackend::take_over(const std::string& serial) {
  const auto node = numa_node_of(serial);
  if (!node.has_value()) return bad_object_name(serial, "NumaBackend::take_over");
  const MutexLock lock(opening_);
  TERRACE_ASSIGN_OR_RETURN(const Node opened, open_node(*node, true));
  return {};
}

Result<std::string> NumaBackend::online(const std::string& serial) {
  if (!has_ram_) return cannot("bring online");
  const MutexLock lock(ram_mutex_);
  TERRACE_ASSIGN_OR_RETURN(const int node, ram_->online(serial));
  return numa_serial(node);
}

// The server sees to it that the device is not adopted: then nothing is leased from it. What was not erased yet
// would be moved to other memory by the kernel, and stay.
Status NumaBackend::offline(const std::string& serial) {
  const auto node = numa_node_of(serial);
  if (!node.has_value() || !has_ram_) return cannot("take offline");
  {
    const MutexLock lock(opening_);
    close_unknown();
    const MutexLock nodes(mutex_);
    if (nodes_.contains(*node)) {
      return Error{.code = ErrorCode::busy,
                   .where = "NumaBackend::offline",
                   .detail = "objects of leases are still on " + serial + "; `terrace fsck` shows them"};
    }
  }
  const MutexLock lock(ram_mutex_);
  return ram_->offline(*node);
}

// --- whose they are -------------------------------------------------------------------------------------

Status NumaBackend::claim(const StoreClaim& claim) {
  const MutexLock lock(opening_);
  for (const Node& node : open_nodes()) TERRACE_RETURN_IF_ERROR(node->files().claim(claim));
  if (claim.check_only) return {};
  const MutexLock answers(mutex_);
  claim_ = claim;
  claim_->is_new = false;  // a node that is adopted later is this store's own doing
  return {};
}

// --- objects --------------------------------------------------------------------------------------------

std::vector<NumaBackend::Node> NumaBackend::open_nodes() const {
  const MutexLock lock(mutex_);
  std::vector<Node> all;
  for (const auto& [number, node] : nodes_) all.push_back(node);
  return all;
}

Result<NumaBackend::Node> NumaBackend::node_of(const std::vector<Extent>& extents) const {
  constexpr const char* where = "NumaBackend";
  const MutexLock lock(mutex_);
  Node found;
  for (const Extent& extent : extents) {
    const auto device = std::find_if(known_.begin(), known_.end(),
                                     [&](const KnownDevice& one) { return one.id == extent.device; });
    const int number = device == known_.end() ? -1 : numa_node_of(device->serial).value_or(-1);
    const auto node = nodes_.find(number);
    if (node == nodes_.end()) {
      std::string detail = "the memory node is not there";
      if (number >= 0) {
        detail = "node " + std::to_string(number) + " is not there";
        if (const auto seen = seen_.find(number); seen != seen_.end() && !seen->second.problem.empty())
          detail = seen->second.problem;
      }
      return Error{.code = ErrorCode::unavailable, .where = where, .detail = detail};
    }
    if (found != nullptr && found != node->second) {
      return Error{
          .code = ErrorCode::unsupported,
          .where = where,
          .detail =
              "a lease cannot lie on two memory nodes at once; give the pool the placement 'spread', or "
              "make one pool of each node"};
    }
    found = node->second;
  }
  if (found != nullptr) return found;
  return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = "a lease without extents"};
}

Result<NumaBackend::Node> NumaBackend::holder_of(const std::string& file) const {
  for (const Node& node : open_nodes()) {
    const auto usage = node->files().usage(file);
    if (usage.ok()) return node;
    const ErrorCode code = usage.error().code;
    if (code != ErrorCode::not_found && code != ErrorCode::invalid_argument) return usage.error();
  }
  TERRACE_RETURN_IF_ERROR(all_open());  // it may be on one that could not be opened
  return Node();
}

Status NumaBackend::all_open() const {
  const MutexLock lock(mutex_);
  for (const auto& [node, seen] : seen_)
    if (seen.passes)
      return os_error(
          EAGAIN, "NumaBackend",
          "the objects of node " + std::to_string(node) + " cannot be looked at now: " + seen.problem);
  return {};
}

Status NumaBackend::carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) {
  TERRACE_ASSIGN_OR_RETURN(const std::string file, file_of(name, "NumaBackend::carve"));
  TERRACE_ASSIGN_OR_RETURN(const Node node, node_of(extents));
  return node->files().carve(file, bytes, extents);
}

Result<UniqueFd> NumaBackend::open(const std::string& name, ObjectAccess access) {
  constexpr const char* where = "NumaBackend::open";
  TERRACE_ASSIGN_OR_RETURN(const std::string file, file_of(name, where));
  TERRACE_ASSIGN_OR_RETURN(const Node node, holder_of(file));
  if (node != nullptr) return node->files().open(file, access);
  return Error{.code = ErrorCode::not_found, .where = where, .detail = "there is no object " + name};
}

Status NumaBackend::hand_out(const std::string& name) {
  constexpr const char* where = "NumaBackend::hand_out";
  TERRACE_ASSIGN_OR_RETURN(const std::string file, file_of(name, where));
  TERRACE_ASSIGN_OR_RETURN(const Node node, holder_of(file));
  if (node != nullptr) return node->files().hand_out(file);
  return Error{.code = ErrorCode::not_found, .where = where, .detail = "there is no object " + name};
}

Status NumaBackend::fence(const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const std::string file, file_of(name, "NumaBackend::fence"));
  TERRACE_ASSIGN_OR_RETURN(const Node node, holder_of(file));
  return node == nullptr ? Status() : node->files().fence(file);
}

Result<uint64_t> NumaBackend::scrub(const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(const std::string file, file_of(name, "NumaBackend::scrub"));
  TERRACE_ASSIGN_OR_RETURN(const Node node, holder_of(file));
  if (node == nullptr) return uint64_t{0};
  return node->files().scrub(file);
}

Status NumaBackend::resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                           const std::vector<Extent>& extents) {
  TERRACE_ASSIGN_OR_RETURN(const std::string file, file_of(name, "NumaBackend::resize"));
  TERRACE_ASSIGN_OR_RETURN(const Node node, node_of(extents));
  return node->files().resize(file, from_bytes, to_bytes, extents);
}

Status NumaBackend::rebind(const std::string& from, const std::string& to, uint64_t bytes,
                           const std::vector<Extent>& extents) {
  constexpr const char* where = "NumaBackend::rebind";
  TERRACE_ASSIGN_OR_RETURN(const std::string from_file, file_of(from, where));
  TERRACE_ASSIGN_OR_RETURN(const std::string to_file, file_of(to, where));
  TERRACE_ASSIGN_OR_RETURN(const Node node, node_of(extents));
  return node->files().rebind(from_file, to_file, bytes, extents);
}

Status NumaBackend::copy(const std::string& from, const std::string& to, uint64_t bytes) {
  constexpr const char* where = "NumaBackend::copy";
  TERRACE_ASSIGN_OR_RETURN(const std::string from_file, file_of(from, where));
  TERRACE_ASSIGN_OR_RETURN(const std::string to_file, file_of(to, where));
  TERRACE_ASSIGN_OR_RETURN(const Node source, holder_of(from_file));
  TERRACE_ASSIGN_OR_RETURN(const Node target, holder_of(to_file));
  if (source == nullptr || target == nullptr) {
    return Error{.code = ErrorCode::not_found,
                 .where = where,
                 .detail = "there is no object " + (source == nullptr ? from : to)};
  }
  return target->files().copy_from(source->files(), from_file, to_file, bytes);
}

Result<std::vector<ObservedObject>> NumaBackend::list() {
  std::vector<ObservedObject> all;
  TERRACE_RETURN_IF_ERROR(all_open());
  for (const Node& node : open_nodes()) {
    TERRACE_ASSIGN_OR_RETURN(std::vector<ObservedObject> some, node->files().list());
    for (ObservedObject& object : some) {
      object.name = std::string(object_prefix) + object.name;
      object.device = numa_serial(node->node());
      all.push_back(std::move(object));
    }
  }
  return all;
}

Result<ObservedObject> NumaBackend::usage(const std::string& name) {
  constexpr const char* where = "NumaBackend::usage";
  TERRACE_ASSIGN_OR_RETURN(const std::string file, file_of(name, where));
  TERRACE_ASSIGN_OR_RETURN(const Node node, holder_of(file));
  if (node == nullptr)
    return Error{.code = ErrorCode::not_found, .where = where, .detail = "there is no object " + name};
  TERRACE_ASSIGN_OR_RETURN(ObservedObject object, node->files().usage(file));
  object.name = name;
  return object;
}

bool NumaBackend::huge_pages(std::string_view name) const {
  if (!name.starts_with(object_prefix)) return false;
  const auto node = holder_of(std::string(name.substr(object_prefix.size())));
  return node.ok() && *node != nullptr && (*node)->files().huge_pages("");
}

std::string NumaBackend::describe_memory() const {
  std::string text;
  for (const Node& node : open_nodes()) text += (text.empty() ? "" : "; ") + node->files().describe_memory();
  return text.empty() ? "no memory node" : text;
}

std::vector<std::string> NumaBackend::object_directories() const {
  std::vector<std::string> paths;
  for (const Node& node : open_nodes()) paths.push_back(node->path());
  return paths;
}

Status NumaBackend::remove_directories() {
  const MutexLock lock(opening_);
  Status first;
  for (const Node& node : open_nodes()) {
    Status removed = node->files().remove_directory();
    if (!removed.ok() && first.ok()) first = std::move(removed);
  }
  const MutexLock nodes(mutex_);
  nodes_.clear();
  return first;
}

}  // namespace terrace::daemon
