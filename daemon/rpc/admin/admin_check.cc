// SPDX-License-Identifier: Apache-2.0
// The operator's interface: the checks of a serving manager. Both compare the state with what lies outside of it, and
// neither holds anybody up: a worker looks outside, a snapshot of the process is compared with that. What was in the
// middle of a change is seen in one look and not in the next: only what both show is told.
#include <algorithm>
#include <map>
#include <set>

#include "daemon/fsck/fsck.h"
#include "daemon/fsck/node_check.h"
#include "daemon/rpc/admin/admin.h"

namespace terrace::daemon {
namespace {

using Found = SnapshotProcess::Found;

// One message's worth.
constexpr size_t found_max = 10'000;

template <typename Outside>
struct Check {
  std::function<Result<Outside>()> look;                 // on a worker
  std::function<Found(const Outside& outside)> compare;  // in the snapshot
  std::function<bool(const std::string&)> lasts;  // shown as the last look has it, whatever the first one said
};

template <typename Outside>
kj::Promise<Result<Found>> look_once(Engine& engine, std::shared_ptr<const Check<Outside>> check) {
  return engine
      .run_look([check]() -> Result<std::shared_ptr<const Outside>> {
        TERRACE_ASSIGN_OR_RETURN(Outside outside, check->look());
        return std::shared_ptr<const Outside>(std::make_shared<Outside>(std::move(outside)));
      })
      .then([&engine, check](Result<std::shared_ptr<const Outside>> outside) -> kj::Promise<Result<Found>> {
        if (!outside.ok()) return Result<Found>(outside.error());
        const Outside* seen = outside->get();
        return engine.run_on_snapshot([check, seen] { return check->compare(*seen); },
                                      std::move(outside).value());
      });
}

template <typename Outside>
kj::Promise<Result<Found>> look_twice(Engine& engine, std::shared_ptr<const Check<Outside>> check) {
  return look_once(engine, check).then([&engine, check](Result<Found> first) -> kj::Promise<Result<Found>> {
    const auto lasts = [&check](const std::string& one) { return check->lasts(one); };
    if (!first.ok() || std::all_of(first->begin(), first->end(), lasts)) return first;
    return look_once(engine, check).then([check, before = std::move(first).value()](Result<Found> second) {
      if (!second.ok()) return second;
      const std::set<std::string> seen(before.begin(), before.end());
      std::erase_if(*second, [&](const std::string& one) { return !check->lasts(one) && !seen.contains(one); });
      return second;
    });
  });
}

using Observed = std::vector<ObservedObject>;

void compare_objects(Service& service, const Observed& objects, Found& problems) {
  std::map<std::string, uint64_t> sizes;
  for (const ObservedObject& object : objects) sizes[object.name] = object.bytes;
  for (const auto& [id, lease] : service.engine().state().leases()) {
    const auto at = sizes.find(lease.object);
    // Being cut to another length, it may be seen with either.
    const bool usable =
        (lease.phase == LeasePhase::active || lease.phase == LeasePhase::revoking) && lease.target_bytes == 0;
    if (usable && at == sizes.end()) {
      problems.push_back("lease " + std::to_string(id.value) + " has no memory object");
    } else if (usable && at->second != lease.bytes) {
      problems.push_back("the object of lease " + std::to_string(id.value) + " has " +
                         std::to_string(at->second) + " bytes instead of " + std::to_string(lease.bytes));
    }
    sizes.erase(lease.object);
    sizes.erase(lease.next_object);
  }
  for (const auto& [id, view] : service.engine().state().views()) sizes.erase(view.object);
  for (const auto& [serial, object] : service.litmus_runs().under_way()) sizes.erase(object);
  for (const std::string& name : service.engine().leftovers()) sizes.erase(name);  // they go by themselves
  for (const auto& [name, bytes] : sizes) problems.push_back("object " + name + " belongs to no lease");
}

struct Outside {
  std::vector<ObservedObject> objects;
  std::vector<SeenDevice> devices;
  std::vector<LiveMapping> mappings;
  std::string boot_id;
};

// Lists files and walks /proc.
Result<Outside> look_outside(Backend& backend, const std::string& object_directory,
                             const std::string& runtime_directory, bool dax) {
  Outside seen;
  seen.boot_id = read_boot_id();
  TERRACE_ASSIGN_OR_RETURN(seen.objects, backend.list());
  seen.mappings = scan_mappings(object_directory, dax);
  for (LiveMapping& mapping : scan_node_mappings(runtime_directory))
    seen.mappings.push_back(std::move(mapping));
  seen.devices = backend.discover();
  return seen;
}

// A finding as one text, for the way out of the snapshot: its parts have no zeros in them.
std::string pack(const Finding& finding) {
  std::string text(1, static_cast<char>(finding.severity));
  for (const std::string* part : {&finding.subject, &finding.what, &finding.repair}) text.append(*part) += '\0';
  return text;
}

bool is_note(const std::string& packed) {
  return !packed.empty() && packed[0] == static_cast<char>(Severity::note);
}

void write_finding(rpc::Finding::Builder out, std::string_view packed) {
  out.setSeverity(std::string(severity_name(static_cast<Severity>(packed[0]))));
  packed.remove_prefix(1);
  const auto next = [&packed] {
    std::string part(packed.substr(0, packed.find('\0')));
    packed.remove_prefix(part.size() + 1);
    return part;
  };
  out.setSubject(next());
  out.setWhat(next());
  out.setRepair(next());
}

// "lease 7 has no memory object"
std::string unpacked(std::string_view packed) {
  packed.remove_prefix(1);
  const std::string_view subject = packed.substr(0, packed.find('\0'));
  const std::string_view rest = packed.substr(subject.size() + 1);
  return std::string(subject) + " " + std::string(rest.substr(0, rest.find('\0')));
}

bool has_dax_devices(const StateMachine& state) {
  Image devices;
  for (const auto& [id, device] : state.devices()) devices.devices.push_back(device);
  return terrace::daemon::has_dax_devices(devices);
}

Found compare_all(const StateMachine& state, const Outside& seen) {
  CheckContext context{.serving = true, .boot_id = seen.boot_id};
  for (const auto& [id, lease] : state.leases())
    if (lease.phase == LeasePhase::pending) context.in_flight.insert(lease.object);
  Found found;
  for (const Finding& one :
       check_consistency(state.image(), seen.objects, seen.devices, seen.mappings, context))
    if (found.size() < found_max) found.push_back(pack(one));  // errors come first
  return found;
}

}  // namespace

void AdminServer::tell_problems(const char* code, size_t count, const std::string& first) {
  engine().events().tell(Event{.kind = EventKind::check_found_problems,
                               .severity = EventSeverity::critical,
                               .message = std::string(code) + " found " + std::to_string(count) +
                                          (count == 1 ? " problem: " : " problems, the first: ") + first,
                               .code = code,
                               .cause = connection_->name()});
}

kj::Promise<void> AdminServer::check(CheckContext context) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    auto check = std::make_shared<Check<Observed>>();
    check->look = [&backend = engine().backend()] { return backend.list(); };
    check->compare = [&service = service()](const Observed& objects) {
      Found problems = service.engine().state().check_all();
      compare_objects(service, objects, problems);
      if (problems.size() > found_max) problems.resize(found_max);
      return problems;
    };
    check->lasts = [](const std::string&) { return false; };
    return service()
        .checks()
        .turn()
        .then([&engine = engine(), check](kj::Own<OneAtATime::Turn> turn) {
          return look_twice<Observed>(engine, check).attach(kj::mv(turn));
        })
        .then([this, context](Result<Found> problems) mutable {
          if (!problems.ok()) return refuse(context, problems.error());
          if (!problems->empty()) tell_problems("check", problems->size(), problems->front());
          auto out = context.getResults().initProblems(static_cast<uint32_t>(problems->size()));
          for (uint32_t i = 0; i < out.size(); ++i) out.set(i, (*problems)[i]);
        })
        .attach(kj::mv(*slot));
  }
  return kj::READY_NOW;
}

kj::Promise<void> AdminServer::fsck(FsckContext context) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    auto check = std::make_shared<Check<Outside>>();
    check->look = [&backend = engine().backend(), objects = service().options().object_directory,
                   runtime = service().options().runtime_directory,
                   dax = has_dax_devices(state())] { return look_outside(backend, objects, runtime, dax); };
    check->compare = [&engine = engine()](const Outside& seen) { return compare_all(engine.state(), seen); };
    check->lasts = is_note;
    return service()
        .checks()
        .turn()
        .then([&engine = engine(), check](kj::Own<OneAtATime::Turn> turn) {
          return look_twice<Outside>(engine, check).attach(kj::mv(turn));
        })
        .then([this, context](Result<Found> findings) mutable {
          if (!findings.ok()) return refuse(context, findings.error());
          const auto problems = std::count_if(findings->begin(), findings->end(),
                                              [](const std::string& one) { return !is_note(one); });
          if (problems != 0) tell_problems("fsck", static_cast<size_t>(problems), unpacked(findings->front()));
          auto out = context.getResults().initFindings(static_cast<uint32_t>(findings->size()));
          for (uint32_t i = 0; i < out.size(); ++i) write_finding(out[i], (*findings)[i]);
        })
        .attach(kj::mv(*slot));
  }
  return kj::READY_NOW;
}

}  // namespace terrace::daemon
