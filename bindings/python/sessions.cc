// Session, Lease, Mapping.
#include <pybind11/stl.h>

#include <string>

#include "bindings/python/handles.h"
#include "bindings/python/values.h"
#include "core/base/limits.h"

namespace terrace::python {
namespace {

constexpr std::pair<const char*, LeaseMode> modes[] = {{"exclusive", LeaseMode::exclusive},
                                                       {"shared_read_only", LeaseMode::shared_read_only},
                                                       {"shared_coherent", LeaseMode::shared_coherent}};

const char* name_of(LeaseState state) {
  return state == LeaseState::live ? "live" : state == LeaseState::revoking ? "revoking" : "lost";
}

LeaseMode mode_of(const std::string& name) {
  for (const auto& mode : modes)
    if (name == mode.first) return mode.second;
  raise_invalid("'" + name + "' is no lease mode: exclusive, shared_read_only, shared_coherent");
}

const char* name_of(LeaseMode wanted) {
  for (const auto& mode : modes)
    if (wanted == mode.second) return mode.first;
  return "exclusive";
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
  SessionObject made;
  made.session = ends_without_gil<Session>(take(without_gil([&] { return Session::connect(options); })));
  made.notices = std::make_shared<SessionObject::Notices>();
  made.session->on_notice([notices = made.notices](const LeaseNotice& notice) {
    constexpr size_t most = 10'000;  // nobody asks: the old ones go
    const std::lock_guard lock(notices->mutex);
    if (notices->waiting.size() >= most) notices->waiting.erase(notices->waiting.begin());
    notices->waiting.push_back(notice);
  });
  return made;
}

LeaseObject lease_object(const std::shared_ptr<Session>& session, std::shared_ptr<Lease> lease) {
  return {session, kept_by(session, std::move(lease))};
}

py::object told(const TierFigures& figures) {
  return named(
      "TierFigures",
      py::dict(py::arg("latency_ns") = figures.latency_ns,
               py::arg("bandwidth_bytes_per_s") = figures.bandwidth_bytes_per_s, py::arg("node") = figures.node,
               py::arg("distance") = figures.distance, py::arg("persistent") = figures.persistent,
               py::arg("source") = figures.source, py::arg("isolation") = figures.isolation));
}

py::object told(const LeaseInfo& info) {
  return named(
      "LeaseInfo",
      py::dict(py::arg("id") = info.id.value, py::arg("epoch") = info.epoch.value, py::arg("pool") = info.pool,
               py::arg("tenant") = info.tenant, py::arg("host") = info.host, py::arg("label") = info.label,
               py::arg("phase") = info.phase, py::arg("reason") = info.reason,
               py::arg("mode") = name_of(info.mode), py::arg("bytes") = info.bytes,
               py::arg("ttl_ns") = info.ttl_ns, py::arg("expires_in_ns") = info.expires_in_ns,
               py::arg("movable") = info.movable, py::arg("holders") = info.holders,
               py::arg("figures") = told(info.figures)));
}

py::object told(const PoolInfo& info) {
  return named(
      "PoolInfo",
      py::dict(py::arg("name") = info.name, py::arg("devices") = info.devices,
               py::arg("capacity_bytes") = info.capacity_bytes, py::arg("free_bytes") = info.free_bytes,
               py::arg("leased_bytes") = info.leased_bytes, py::arg("grantable_bytes") = info.grantable_bytes,
               py::arg("granule_bytes") = info.granule_bytes, py::arg("figures") = told(info.figures)));
}

template <typename Info>
py::list told(const std::vector<Info>& infos) {
  py::list list;
  for (const Info& info : infos) list.append(told(info));
  return list;
}

py::list take_notices(const SessionObject& self) {
  std::vector<LeaseNotice> waiting;
  {
    const std::lock_guard lock(self.notices->mutex);
    waiting.swap(self.notices->waiting);
  }
  py::list list;
  for (const LeaseNotice& notice : waiting)
    list.append(named("LeaseNotice",
                      py::dict(py::arg("lease") = notice.lease.value, py::arg("state") = name_of(notice.state),
                               py::arg("grace_ns") = notice.grace_ns, py::arg("reason") = notice.reason,
                               py::arg("cause") = std::string(lease_cause_name(notice.cause)),
                               py::arg("move_requested") = notice.move_requested)));
  return list;
}

// None: as long as any lease may live without a renewal.
uint64_t ttl_of(const py::object& seconds) {
  return seconds.is_none() ? limits::ttl_ns_max : nanoseconds(seconds);
}

LeaseObject grant(const SessionObject& self, uint64_t bytes, const std::string& pool, const std::string& mode,
                  const py::object& ttl, bool persistent, const std::string& label, bool movable,
                  const py::object& wait) {
  LeaseRequest request;
  request.pool = pool;
  request.bytes = bytes;
  request.mode = mode_of(mode);
  request.ttl_ns = ttl_of(ttl);
  request.persistent = persistent;
  request.label = label;
  request.movable = movable;
  request.wait_ns = wait.is_none() ? limits::wait_ns_max : nanoseconds(wait);
  const auto session = self.open();
  return lease_object(session, take(without_gil([&] { return session->grant(request); })));
}

LeaseObject attach(const SessionObject& self, const py::object& which, bool read_only) {
  const bool by_label = py::isinstance<py::str>(which);
  const LeaseId id{by_label ? 0 : which.cast<uint64_t>()};
  const std::string label = by_label ? which.cast<std::string>() : "";
  if (id.value == 0 && label.empty()) raise_invalid("a lease is attached by its id or its label");
  const auto session = self.open();
  const LeaseAccess access = read_only ? LeaseAccess::read_only : LeaseAccess::read_write;
  return lease_object(session, take(without_gil([&] { return session->attach(id, label, access); })));
}

void release(const LeaseObject& self) {
  take(without_gil([&] { return self.lease->release(); }));
}

void add_lease(py::module_& module) {
  py::class_<LeaseObject>(module, "Lease",
                          "A right to memory until an expiry; renewed while this object lives.")
      .def_property_readonly("id", [](const LeaseObject& self) { return self.lease->id().value; })
      .def_property_readonly("epoch", [](const LeaseObject& self) { return self.lease->epoch().value; })
      .def_property_readonly("bytes", [](const LeaseObject& self) { return self.lease->bytes(); })
      .def_property_readonly("state", [](const LeaseObject& self) { return name_of(self.lease->state()); })
      .def("fileno", [](const LeaseObject& self) { return self.lease->fd(); })
      .def("info",
           [](const LeaseObject& self) { return told(take(without_gil([&] { return self.lease->info(); }))); })
      .def(
          "renew",
          [](const LeaseObject& self, const py::object& ttl) {
            const uint64_t ttl_ns = ttl_of(ttl);
            take(without_gil([&] { return self.lease->renew(ttl_ns); }));
          },
          py::arg("ttl") = 0.0)
      .def(
          "resize",
          [](const LeaseObject& self, uint64_t bytes) {
            return told(take(without_gil([&] { return self.lease->resize(bytes); })));
          },
          py::arg("bytes"))
      .def("release", release, "Gives the memory back; whatever still maps it gets SIGBUS.")
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](const LeaseObject& self, const py::args&) {
        if (self.lease->state() != LeaseState::lost) release(self);
      });
}

void add_mapping(py::module_& module) {
  py::class_<MappingObject>(module, "Mapping", "A lease's memory in this process, as bytes.",
                            exports_buffer<MappingObject>())
      .def(py::init([](const LeaseObject& lease) {
             auto made = take(without_gil([&] { return Mapping::map(lease.lease); }));
             return MappingObject{ends_without_gil<Mapping>(std::move(made))};
           }),
           py::arg("lease"))
      .def("__len__", [](const MappingObject& self) { return self.mapping->const_bytes().size(); })
      .def_property_readonly("granularity",
                             [](const MappingObject& self) { return self.mapping->store_granularity(); })
      .def("numpy", [](const MappingObject& self) { return numpy_of(self.array()); });
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
           py::arg("call_timeout") = 30.0)
      .def("grant", &grant, py::arg("bytes"), py::kw_only(), py::arg("pool") = "",
           py::arg("mode") = "exclusive", py::arg("ttl") = 0.0, py::arg("persistent") = false,
           py::arg("label") = "", py::arg("movable") = false, py::arg("wait") = 0.0)
      .def("attach", &attach, py::arg("lease"), py::kw_only(), py::arg("read_only") = false)
      .def("leases",
           [](const SessionObject& self) {
             const auto session = self.open();
             return told(take(without_gil([&] { return session->leases(); })));
           })
      .def("pools",
           [](const SessionObject& self) {
             const auto session = self.open();
             return told(take(without_gil([&] { return session->pools(); })));
           })
      .def("notices", &take_notices, "What was told about leases since the last call.")
      .def_property_readonly("tenant", [](const SessionObject& self) { return self.open()->tenant(); })
      .def_property_readonly(
          "connected", [](const SessionObject& self) { return self.session && self.session->connected(); })
      .def(
          "close", [](SessionObject& self) { self.session.reset(); },
          "No more calls; it ends once its leases and what stands on them are gone.")
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](SessionObject& self, const py::args&) { self.session.reset(); });
}

}  // namespace terrace::python
