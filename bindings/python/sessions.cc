// SPDX-License-Identifier: Apache-2.0
// Session, Lease, Mapping.
#include <poll.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/handles.h"
#include "bindings/python/values.h"
#include "core/base/limits.h"
#include "terrace/words.h"

namespace terrace::python {
namespace {

const char* name_of(LeaseState state) {
  return state == LeaseState::live ? "live" : state == LeaseState::revoking ? "revoking" : "lost";
}

OnFence on_fence_of(const std::string& name) {
  if (const auto on_fence = on_fence_of_name(name)) return *on_fence;
  raise_invalid("'" + name + "' is neither \"keep\" nor \"kill\"");
}

LeaseMode mode_of(const std::string& name) {
  if (const auto mode = lease_mode_of_name(name)) return *mode;
  std::string known;
  for (const std::string& one : lease_mode_names()) known += (known.empty() ? "" : ", ") + one;
  raise_invalid("'" + name + "' is no lease mode: " + known);
}

SessionObject connect(const std::string& socket, const std::string& tenant, const std::string& host,
                      const std::string& client_name, const py::object& connect_timeout,
                      const py::object& call_timeout) {
  const SessionOptions options{.socket_path = socket,
                               .tenant = tenant,
                               .host = host,
                               .client_name = client_name,
                               .connect_timeout_ns = nanoseconds(connect_timeout),
                               .call_timeout_ns = nanoseconds(call_timeout)};
  return {ends_without_gil<Session>(take(without_gil([&] { return Session::connect(options); }))),
          std::make_shared<const Origin>(Origin{socket, tenant, host})};
}

LeaseObject lease_object(const SessionObject& self, const std::shared_ptr<Session>& session,
                         std::shared_ptr<Lease> lease) {
  return {session, kept_by(session, std::move(lease)), self.origin};
}

// Structured bindings name every field of the C++ structs: one that is added there does not compile here until
// it is told.
py::object to_python(const TierFigures& figures) {
  const auto& [latency_ns, bandwidth_bytes_per_s, node, distance, persistent, source, isolation] = figures;
  return named(
      "TierFigures",
      py::dict(py::arg("latency_ns") = latency_ns, py::arg("bandwidth_bytes_per_s") = bandwidth_bytes_per_s,
               py::arg("node") = node, py::arg("distance") = distance, py::arg("persistent") = persistent,
               py::arg("source") = source, py::arg("isolation") = isolation));
}

py::object to_python(const ExtentInfo& extent) {
  const auto& [device, offset_bytes, length_bytes] = extent;
  return named("ExtentInfo", py::dict(py::arg("device") = device, py::arg("offset_bytes") = offset_bytes,
                                      py::arg("length_bytes") = length_bytes));
}

py::object to_python(const UsageReport& usage) {
  const auto& [ddr_bytes, cxl_bytes, live_bytes, holder] = usage;
  return named("UsageReport", py::dict(py::arg("ddr_bytes") = ddr_bytes, py::arg("cxl_bytes") = cxl_bytes,
                                       py::arg("live_bytes") = live_bytes, py::arg("holder") = holder));
}

py::object to_python(const PartOwner& owner) {
  const auto& [part, epoch, owned, ended, pid, holder, host] = owner;
  return named("PartOwner", py::dict(py::arg("part") = part, py::arg("epoch") = epoch, py::arg("owned") = owned,
                                     py::arg("ended") = ended, py::arg("pid") = pid, py::arg("holder") = holder,
                                     py::arg("host") = host));
}

py::object to_python(const FreeRuns& runs) {
  const auto& [run_bytes_min, count, bytes] = runs;
  return named("FreeRuns", py::dict(py::arg("run_bytes_min") = run_bytes_min, py::arg("runs") = count,
                                    py::arg("bytes") = bytes));
}

template <typename Info>
py::list to_python(const std::vector<Info>& infos);

py::object to_python(const LeaseInfo& info) {
  const auto& [id, epoch, pool, tenant, host, label, object, reason, phase, tier, isolation, bytes, ttl_ns,
               expires_in_ns, granule_bytes, object_bytes, huge_pages, mode, extents, usage, usage_age_ns,
               cause, movable, holders, figures, coherence, owners, offered_to, on_fence, further_hosts] = info;
  return named(
      "LeaseInfo",
      py::dict(py::arg("id") = id.value, py::arg("epoch") = epoch.value, py::arg("pool") = pool,
               py::arg("tenant") = tenant, py::arg("host") = host, py::arg("label") = label,
               py::arg("phase") = phase, py::arg("reason") = reason,
               py::arg("mode") = std::string(lease_mode_name(mode)), py::arg("bytes") = bytes,
               py::arg("ttl_ns") = ttl_ns, py::arg("expires_in_ns") = expires_in_ns,
               py::arg("movable") = movable, py::arg("holders") = holders,
               py::arg("figures") = to_python(figures), py::arg("object") = object, py::arg("tier") = tier,
               py::arg("isolation") = isolation, py::arg("granule_bytes") = granule_bytes,
               py::arg("object_bytes") = object_bytes, py::arg("huge_pages") = huge_pages,
               py::arg("extents") = to_python(extents), py::arg("usage") = to_python(usage),
               py::arg("usage_age_ns") = usage_age_ns, py::arg("cause") = std::string(lease_cause_name(cause)),
               py::arg("coherence") = std::string(memory_coherence_name(coherence)),
               py::arg("owners") = to_python(owners), py::arg("offered_to") = offered_to,
               py::arg("on_fence") = std::string(on_fence_name(on_fence)),
               py::arg("further_hosts") = further_hosts));
}

py::object to_python(const PoolInfo& info) {
  const auto& [name, devices, capacity_bytes, free_bytes, leased_bytes, scrubbing_bytes, quarantined_bytes,
               largest_free_bytes, granule_bytes, leases, placement, stripe_bytes, free_runs, reserved_bytes,
               grantable_bytes, waiting, waiting_bytes, figures, coherence] = info;
  return named(
      "PoolInfo",
      py::dict(py::arg("name") = name, py::arg("devices") = devices, py::arg("capacity_bytes") = capacity_bytes,
               py::arg("free_bytes") = free_bytes, py::arg("leased_bytes") = leased_bytes,
               py::arg("grantable_bytes") = grantable_bytes, py::arg("granule_bytes") = granule_bytes,
               py::arg("figures") = to_python(figures), py::arg("scrubbing_bytes") = scrubbing_bytes,
               py::arg("quarantined_bytes") = quarantined_bytes,
               py::arg("largest_free_bytes") = largest_free_bytes, py::arg("leases") = leases,
               py::arg("placement") = std::string(pool_placement_name(placement)),
               py::arg("stripe_bytes") = stripe_bytes, py::arg("free_runs") = to_python(free_runs),
               py::arg("reserved_bytes") = reserved_bytes, py::arg("waiting") = waiting,
               py::arg("waiting_bytes") = waiting_bytes,
               py::arg("coherence") = std::string(memory_coherence_name(coherence))));
}

template <typename Info>
py::list to_python(const std::vector<Info>& infos) {
  py::list list;
  for (const Info& info : infos) list.append(to_python(info));
  return list;
}

py::object to_python(const LeaseNotice& notice) {
  const auto& [lease, state, grace_ns, reason, cause, move_requested] = notice;
  return named("LeaseNotice", py::dict(py::arg("lease") = lease.value, py::arg("state") = name_of(state),
                                       py::arg("grace_ns") = grace_ns, py::arg("reason") = reason,
                                       py::arg("cause") = std::string(lease_cause_name(cause)),
                                       py::arg("move_requested") = move_requested));
}

py::list take_notices(const SessionObject& self) {
  const auto session = self.open();
  py::list list;
  while (const auto notice = session->next_notice()) list.append(to_python(*notice));
  return list;
}

// Waits in short slices, so that Ctrl-C is heard.
py::object next_notice(const SessionObject& self, const py::object& timeout) {
  constexpr uint64_t slice_ns = 100'000'000;
  const auto session = self.open();
  uint64_t left_ns = timeout.is_none() ? UINT64_MAX : nanoseconds(timeout);
  while (true) {
    if (const auto notice = session->next_notice()) return to_python(*notice);
    if (left_ns == 0) return py::none();
    const uint64_t now_ns = std::min(left_ns, slice_ns);
    const timespec time{.tv_sec = 0, .tv_nsec = static_cast<long>(now_ns)};
    without_gil([&] {
      pollfd readable{.fd = session->notice_fd(), .events = POLLIN, .revents = 0};
      ::ppoll(&readable, 1, &time, nullptr);
    });
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (left_ns != UINT64_MAX) left_ns -= now_ns;
  }
}

// Sessions that call Python: they stop before the interpreter ends, when no thread may wait for the GIL any
// more. With the GIL.
std::vector<std::weak_ptr<Session>>& calling_sessions() {
  static auto* const sessions = new std::vector<std::weak_ptr<Session>>();
  return *sessions;
}

void on_notice(const SessionObject& self, const py::object& handler) {
  const auto session = self.open();
  if (handler.is_none()) {
    without_gil([&] { session->on_notice(nullptr); });
    return;
  }
  if (!PyCallable_Check(handler.ptr())) raise_invalid("a handler of notices can be called, or is None");
  // What Python owns is let go by whichever thread drops the handler.
  const std::shared_ptr<py::object> kept(new py::object(handler), [](py::object* object) {
    const py::gil_scoped_acquire gil;
    delete object;
  });
  auto& calling = calling_sessions();
  std::erase_if(calling, [](const std::weak_ptr<Session>& one) { return one.expired(); });
  calling.push_back(session);
  LeaseNoticeHandler called = [kept](const LeaseNotice& notice) {
    const py::gil_scoped_acquire gil;
    try {
      (*kept)(to_python(notice));
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("a handler of terrace.Session.on_notice");
    }
  };
  without_gil([&] { session->on_notice(std::move(called)); });
}

void stop_calling() {
  std::vector<std::weak_ptr<Session>> calling;
  calling.swap(calling_sessions());
  for (const std::weak_ptr<Session>& one : calling)
    if (const auto session = one.lock()) without_gil([&] { session->on_notice(nullptr); });
}

// Its leases may keep the session: it calls nobody from now on.
void close(SessionObject& self) {
  const auto session = std::exchange(self.session, nullptr);
  if (session != nullptr) without_gil([&] { session->on_notice(nullptr); });
}

// None: as long as any lease may live without a renewal.
uint64_t ttl_of(const py::object& seconds) {
  return seconds.is_none() ? limits::ttl_ns_max : nanoseconds(seconds);
}

LeaseObject grant(const SessionObject& self, uint64_t bytes, const std::string& pool, const std::string& mode,
                  const py::object& ttl, bool persistent, const std::string& label, bool movable,
                  const py::object& wait, bool detached, const std::string& on_fence) {
  LeaseRequest request;
  request.pool = pool;
  request.bytes = bytes;
  request.mode = mode_of(mode);
  request.ttl_ns = ttl_of(ttl);
  request.persistent = persistent;
  request.label = label;
  request.movable = movable;
  request.wait_ns = wait.is_none() ? limits::wait_ns_max : nanoseconds(wait);
  request.detached = detached;
  request.on_fence = on_fence_of(on_fence);
  const auto session = self.open();
  return lease_object(self, session, take(without_gil([&] { return session->grant(request); })));
}

LeaseObject attach(const SessionObject& self, const py::object& which, bool read_only,
                   const std::string& on_fence) {
  const bool by_label = py::isinstance<py::str>(which);
  const LeaseId id{by_label ? 0 : which.cast<uint64_t>()};
  const std::string label = by_label ? which.cast<std::string>() : "";
  if (id.value == 0 && label.empty()) raise_invalid("a lease is attached by its id or its label");
  const auto session = self.open();
  const LeaseAccess access = read_only ? LeaseAccess::read_only : LeaseAccess::read_write;
  const OnFence agreed = on_fence_of(on_fence);
  return lease_object(self, session,
                      take(without_gil([&] { return session->attach(id, label, access, agreed); })));
}

void release(const LeaseObject& self) {
  take(without_gil([&] { return self.lease->release(); }));
}

void add_lease(py::module_& module) {
  py::class_<LeaseObject>(module, "Lease",
                          "A right to memory until an expiry; renewed while this object lives.")
      .def_property_readonly(
          "id", [](const LeaseObject& self) { return self.lease->id().value; }, "The manager's number of it.")
      .def_property_readonly(
          "epoch", [](const LeaseObject& self) { return self.lease->epoch().value; },
          "Of this grant: a number that no other grant has.")
      .def_property_readonly(
          "bytes", [](const LeaseObject& self) { return self.lease->bytes(); },
          "Its size; resize() changes it.")
      .def_property_readonly(
          "on_fence",
          [](const LeaseObject& self) { return std::string(on_fence_name(self.lease->on_fence())); },
          "\"kill\": this process agreed to be ended before the memory is taken; else \"keep\".")
      .def_property_readonly(
          "state", [](const LeaseObject& self) { return name_of(self.lease->state()); },
          "'live', 'revoking': stop using it; or 'lost': its memory is gone.")
      .def_property_readonly(
          "access",
          [](const LeaseObject& self) {
            return self.lease->access() == LeaseAccess::read_only ? "read_only" : "read_write";
          },
          "'read_only' or 'read_write', as it was attached.")
      .def(
          "fileno", [](const LeaseObject& self) { return self.lease->fd(); },
          "The descriptor of its memory, for mmap. It stays the lease's: do not close it.")
      .def(
          "info",
          [](const LeaseObject& self) {
            return to_python(take(without_gil([&] { return self.lease->info(); })));
          },
          "All that the manager knows of it, now. Raises LeaseLost where it is gone.")
      .def(
          "renew",
          [](const LeaseObject& self, const py::object& ttl) {
            const uint64_t ttl_ns = ttl_of(ttl);
            take(without_gil([&] { return self.lease->renew(ttl_ns); }));
          },
          py::arg("ttl") = 0.0,
          "Prolongs it by ttl seconds (0: what it was granted for; None: as long as may be). A living object "
          "is renewed by itself.")
      .def(
          "resize",
          [](const LeaseObject& self, uint64_t bytes) {
            return to_python(take(without_gil([&] { return self.lease->resize(bytes); })));
          },
          py::arg("bytes"), "Gives it another size, and what it is then. Raises CapacityExhausted.")
      .def("release", release, "Gives the memory back; whatever still maps it gets SIGBUS.")
      .def(
          "__enter__", [](py::object self) { return self; }, "The lease itself.")
      .def(
          "__exit__",
          [](const LeaseObject& self, const py::args&) {
            if (self.lease->state() != LeaseState::lost) release(self);
          },
          "Gives the memory back, as release().");
}

void add_mapping(py::module_& module) {
  py::class_<MappingObject>(module, "Mapping", "A lease's memory in this process, as bytes.",
                            exports_buffer<MappingObject>())
      .def(py::init([](const LeaseObject& lease) {
             auto made = take(without_gil([&] { return Mapping::map(lease.lease); }));
             return MappingObject{ends_without_gil<Mapping>(std::move(made))};
           }),
           py::arg("lease"), "Maps all of the lease's memory into this process.")
      .def(
          "__len__", [](const MappingObject& self) { return self.mapping->const_bytes().size(); }, "Bytes.")
      .def_property_readonly(
          "granularity", [](const MappingObject& self) { return self.mapping->store_granularity(); },
          "What a store must be flushed by to be durable: 'byte', 'cache line' or 'page'.")
      .def(
          "numpy", [](const MappingObject& self) { return numpy_of(self.array()); },
          "Its bytes as a numpy array of uint8.");
}

}  // namespace

void raise_closed(const char* what) {
  raise_invalid(std::string("this ") + what + " was closed");
}

std::shared_ptr<Session> SessionObject::open() const {
  if (session == nullptr) raise_closed("session");
  return session;
}

ArrayView MappingObject::array() const {
  const std::span<const std::byte> bytes = mapping->const_bytes();
  return {.data = const_cast<std::byte*>(bytes.data()),  // NOLINT: read_only says whether it may be stored to
          .shape = Shape{bytes.size()},
          .strides = Strides{1},
          .read_only = mapping->bytes().empty(),
          .keep = mapping};
}

void add_sessions(py::module_& module) {
  add_lease(module);
  add_mapping(module);
  py::class_<SessionObject>(module, "Session", "A tenant's connection to a pool manager.")
      .def(py::init(&connect), py::arg("socket") = "", py::kw_only(), py::arg("tenant") = "",
           py::arg("host") = "", py::arg("client_name") = "", py::arg("connect_timeout") = 5.0,
           py::arg("call_timeout") = 30.0,
           "Connects to the manager at `socket` ($TERRACE_SOCKET, else the usual place). Timeouts are seconds. "
           "Raises Unavailable.")
      .def("grant", &grant, py::arg("bytes"), py::kw_only(), py::arg("pool") = "",
           py::arg("mode") = "exclusive", py::arg("ttl") = 0.0, py::arg("persistent") = false,
           py::arg("label") = "", py::arg("movable") = false, py::arg("wait") = 0.0,
           py::arg("detached") = false, py::arg("on_fence") = "keep",
           "Memory of a pool, renewed while the lease lives. ttl: seconds (0: the manager's own, None: as long "
           "as may be); wait: seconds in the queue of a full pool; detached=True leaves it to its ttl at the "
           "end of the process. on_fence=\"kill\": its memory may be pinned, and this process agrees to be "
           "ended "
           "before it is taken. Raises CapacityExhausted.")
      .def("attach", &attach, py::arg("lease"), py::kw_only(), py::arg("read_only") = false,
           py::arg("on_fence") = "keep",
           "A lease that somebody was granted, by its id or label; one whose holders are ended at a fence with "
           "on_fence=\"kill\", by which this process agrees to that. Raises NotFound, PermissionDenied.")
      .def(
          "leases",
          [](const SessionObject& self) {
            const auto session = self.open();
            return to_python(take(without_gil([&] { return session->leases(); })));
          },
          "The leases of this tenant.")
      .def(
          "pools",
          [](const SessionObject& self) {
            const auto session = self.open();
            return to_python(take(without_gil([&] { return session->pools(); })));
          },
          "The pools of the manager.")
      .def("notices", &take_notices, "What was told about leases since the last call.")
      .def("next_notice", &next_notice, py::arg("timeout") = 0.0,
           "The oldest notice that waits; None: none came within `timeout` seconds (None: without a bound).")
      .def("on_notice", &on_notice, py::arg("handler"),
           "Has handler(notice) called with each notice, on a thread of its own; None ends that.")
      .def_property_readonly(
          "notice_fd", [](const SessionObject& self) { return self.open()->notice_fd(); },
          "For select and asyncio: readable while a notice waits. Neither read nor close it.")
      .def_property_readonly(
          "tenant", [](const SessionObject& self) { return self.open()->tenant(); }, "Whose leases these are.")
      .def_property_readonly(
          "connected", [](const SessionObject& self) { return self.session && self.session->connected(); },
          "Whether the manager answers; the session connects again by itself.")
      .def("close", &close, "No more calls; it ends once its leases and what stands on them are gone.")
      .def(
          "__enter__", [](py::object self) { return self; }, "The session itself.")
      .def(
          "__exit__", [](SessionObject& self, const py::args&) { close(self); }, "As close().");
  py::module_::import("atexit").attr("register")(py::cpp_function(&stop_calling));
}

}  // namespace terrace::python
