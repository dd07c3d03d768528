// SPDX-License-Identifier: Apache-2.0
// The operator's interface: devices.
#include <algorithm>

#include "daemon/rpc/admin/admin.h"
#include "daemon/rpc/admin/drain_progress.h"

namespace terrace::daemon {
namespace {

Error still_adopted(const std::string& serial, const char* where) {
  return Error{.code = ErrorCode::busy,
               .where = where,
               .detail = "device " + serial + " is adopted; `terrace device remove " + serial + "` first"};
}

}  // namespace

// Who uses what could be adopted is looked for only when there is such, and somebody asks: in all processes.
kj::Promise<void> AdminServer::devices(DevicesContext context) {
  std::vector<SeenDevice> known = engine().backend().discover();
  const bool foreign = std::any_of(known.begin(), known.end(),
                                   [](const SeenDevice& device) { return !device.contents.empty(); });
  if (!foreign) {
    return query(context, [this, known = std::move(known)](DevicesContext& c) { write_devices(c, known); });
  }
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    return engine()
        .run_blocking([&backend = engine().backend()] { return backend.inspect(); })
        .attach(kj::mv(*slot))
        .then([this, context](std::vector<SeenDevice> seen) mutable {
          return query(context, [this, seen = std::move(seen)](DevicesContext& c) { write_devices(c, seen); });
        });
  }
  return kj::READY_NOW;
}

kj::Promise<void> AdminServer::adopt(AdoptContext context) {
  const std::string serial = read_text(context.getParams().getSerial());
  for (const SeenDevice& seen : engine().backend().discover()) {
    if (seen.serial != serial) continue;
    return adopt_seen(context, seen);
  }
  return refuse_unseen(context, serial);
}

kj::Promise<void> AdminServer::adopt_seen(AdoptContext context, const SeenDevice& seen) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    if (const Status status = service().litmus_runs().may_change(seen.serial); !status.ok()) {
      refuse(context, status.error());
      return kj::READY_NOW;
    }
    kj::Own<LitmusRuns::Adoption> adoption = service().litmus_runs().adoption_begins(seen.serial);
    return engine()
        .adopt(AdoptDevice{seen.serial, seen.backend, seen.capacity_bytes, seen.granule_bytes, now_ns()},
               connection_->caller())
        .then([this, context, &call = *adoption](Result<DeviceReply> adopted) mutable {
          if (!adopted.ok()) {
            refuse(context, adopted.error());
            return;
          }
          call.success();
          write_device(context.getResults().initDevice(), adopted->device, device_use(state(), adopted->device),
                       "", engine());
        })
        .attach(kj::mv(*slot), kj::mv(adoption));
  }
  return kj::READY_NOW;
}

template <typename Context, typename Change, typename Answer>
kj::Promise<void> AdminServer::change_hardware(Context context, Change change, Answer answer) {
  Composition* hardware = engine().backend().composition();
  if (hardware == nullptr) {
    refuse(context, Error{.code = ErrorCode::unsupported,
                          .where = "compose",
                          .detail = "this daemon has no hardware that can be composed"});
    return kj::READY_NOW;
  }
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    return engine()
        .run_blocking([hardware, change = std::move(change)]() mutable { return change(*hardware); })
        .then([this, context, answer](auto outcome) mutable -> kj::Promise<void> {
          if (!outcome.ok()) {
            refuse(context, outcome.error());
          } else {
            answer(context, outcome);
          }
          return engine().look_at_devices();
        })
        .attach(kj::mv(*slot));
  }
  return kj::READY_NOW;
}

kj::Promise<void> AdminServer::createRegion(CreateRegionContext context) {
  const auto params = context.getParams();
  RegionRequest request;
  for (const auto memdev : params.getMemdevs()) request.memdevs.push_back(read_text(memdev));
  request.granularity_bytes = params.getGranularity();
  request.bytes = params.getBytes();
  return change_hardware(
      context, [request](Composition& hardware) { return hardware.create_region(request); },
      [](CreateRegionContext& c, Result<std::string>& serial) { c.getResults().setSerial(*serial); });
}

// What is adopted belongs to the pools: it leaves by `terrace device remove` first.
kj::Promise<void> AdminServer::destroyRegion(DestroyRegionContext context) {
  const std::string serial = read_text(context.getParams().getSerial());
  if (state().find_device(serial) != nullptr) {
    refuse(context, still_adopted(serial, "destroyRegion"));
    return kj::READY_NOW;
  }
  return change_hardware(
      context, [serial](Composition& hardware) { return hardware.destroy_region(serial); },
      [](DestroyRegionContext&, Status&) {});
}

kj::Promise<void> AdminServer::online(OnlineContext context) {
  const std::string serial = read_text(context.getParams().getSerial());
  if (state().find_device(serial) != nullptr) {
    refuse(context, still_adopted(serial, "online"));
    return kj::READY_NOW;
  }
  return change_hardware(
      context, [serial](Composition& hardware) { return hardware.online(serial); },
      [](OnlineContext& c, Result<std::string>& made) { c.getResults().setSerial(*made); });
}

kj::Promise<void> AdminServer::offline(OfflineContext context) {
  const std::string serial = read_text(context.getParams().getSerial());
  if (state().find_device(serial) != nullptr) {
    refuse(context, still_adopted(serial, "offline"));
    return kj::READY_NOW;
  }
  return change_hardware(
      context, [serial](Composition& hardware) { return hardware.offline(serial); },
      [](OfflineContext&, Status&) {});
}

kj::Promise<void> AdminServer::drain(DrainContext context) {
  return command(context, DrainDevice{read_text(context.getParams().getSerial())},
                 [this](DrainContext& c, DeviceReply& reply) {
                   write_progress(c.getResults().initProgress(), reply.device, service());
                 });
}

kj::Promise<void> AdminServer::progress(ProgressContext context) {
  return query(context, [this](ProgressContext& c) {
    const std::string serial = read_text(c.getParams().getSerial());
    if (const DeviceRow* device = state().find_device(serial)) {
      write_progress(c.getResults().initProgress(), *device, service());
    } else {
      refuse(c, unknown_device(serial));
    }
  });
}

kj::Promise<void> AdminServer::undrain(UndrainContext context) {
  return device_command(context, UndrainDevice{read_text(context.getParams().getSerial()), now_ns()});
}

kj::Promise<void> AdminServer::failDevice(FailDeviceContext context) {
  return device_command(context, FailDevice{read_text(context.getParams().getSerial()), now_ns()});
}

kj::Promise<void> AdminServer::removeDevice(RemoveDeviceContext context) {
  const auto params = context.getParams();
  const RemoveDevice request{read_text(params.getSerial()), params.getForgetQuarantined()};
  if (const Status status = service().litmus_runs().may_change(request.serial); !status.ok()) {
    refuse(context, status.error());
    return kj::READY_NOW;
  }
  return command(context, request, [this, serial = request.serial](RemoveDeviceContext&, Done&) {
    service().litmus_runs().forget(serial);
  });
}

Error AdminServer::unknown_device(const std::string& serial) {
  return Error{.code = ErrorCode::not_found,
               .where = "adopt",
               .detail = "there is no device '" + shown(serial) + "'; `terrace device list` shows those seen"};
}

void AdminServer::write_devices(DevicesContext& c, const std::vector<SeenDevice>& seen) {
  std::vector<const DeviceRow*> unseen;
  for (const auto& row : state().devices()) {
    const DeviceRow& device = row.second;
    const bool present = std::any_of(seen.begin(), seen.end(),
                                     [&](const SeenDevice& other) { return other.serial == device.serial; });
    if (!present) unseen.push_back(&device);
  }
  auto uses = device_uses(state());
  auto out = c.getResults().initDevices(static_cast<uint32_t>(seen.size() + unseen.size()));
  uint32_t i = 0;
  for (const SeenDevice& device : seen) {
    auto entry = out[i++];
    if (const DeviceRow* row = state().find_device(device.serial)) {
      write_device(entry, *row, uses[row->id], device.detail, engine());
      continue;
    }
    entry.setSerial(device.serial);
    entry.setBackend(device.backend);
    entry.setCapacityBytes(device.capacity_bytes);
    entry.setGranuleBytes(device.granule_bytes);
    entry.setDetail(device.detail);
    entry.setContents(device.contents);
    write_attributes(entry.initAttributes(), engine().backend().attributes(device.serial));
    entry.setPresent(true);
  }
  for (const DeviceRow* device : unseen) {
    auto entry = out[i++];
    write_device(entry, *device, uses[device->id], "adopted once, not seen now", engine());
    entry.setPresent(false);
  }
}

}  // namespace terrace::daemon
