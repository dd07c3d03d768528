// SPDX-License-Identifier: Apache-2.0
#include "daemon/hosts/agent_wire.h"

#include "core/base/limits.h"
#include "daemon/state/names.h"

namespace terrace::daemon {
namespace {

constexpr uint64_t object_bytes_max = uint64_t{1} << 56;

Error impossible(const std::string& what) {
  return Error{.code = ErrorCode::invalid_argument, .where = "agent_wire", .detail = "impossible " + what};
}

std::string text(capnp::Text::Reader in) {
  return std::string(in.cStr(), in.size());
}

}  // namespace

void write_object(rpc::AgentObject::Builder out, const std::string& name, uint64_t bytes,
                  const std::vector<WireExtent>& extents) {
  out.setName(name);
  out.setBytes(bytes);
  auto list = out.initExtents(static_cast<uint32_t>(extents.size()));
  for (uint32_t i = 0; i < extents.size(); ++i) {
    list[i].setDevice(extents[i].serial);
    list[i].setOffset(extents[i].offset);
    list[i].setLength(extents[i].length);
  }
}

void write_observed(rpc::AgentObject::Builder out, const ObservedObject& object) {
  write_object(out, object.name, object.bytes, {});
  out.setHandedOut(object.handed_out);
}

void write_devices(capnp::List<rpc::AgentDevice>::Builder out, const std::vector<SeenDevice>& devices) {
  for (uint32_t i = 0; i < devices.size(); ++i) {
    out[i].setSerial(devices[i].serial);
    out[i].setBackend(devices[i].backend);
    out[i].setCapacityBytes(devices[i].capacity_bytes);
    out[i].setGranuleBytes(devices[i].granule_bytes);
  }
}

Result<WireObject> read_object(rpc::AgentObject::Reader in) {
  WireObject object{text(in.getName()), in.getBytes(), {}, in.getHandedOut()};
  if (!valid_name(object.name) || !object_host(object.name).empty())
    return impossible("name of a memory object");
  if (object.bytes > object_bytes_max) return impossible("size of memory object " + object.name);
  if (in.getExtents().size() > limits::lease_extents_max)
    return impossible("number of extents of memory object " + object.name);
  for (const rpc::Extent::Reader extent : in.getExtents()) {
    WireExtent read{text(extent.getDevice()), extent.getOffset(), extent.getLength()};
    if (!valid_name(read.serial) || read.offset > object_bytes_max || read.length > object_bytes_max)
      return impossible("extent of memory object " + object.name);
    object.extents.push_back(std::move(read));
  }
  return object;
}

Result<std::vector<WireObject>> read_objects(capnp::List<rpc::AgentObject>::Reader in) {
  if (in.size() > agent_objects_max) return impossible("number of memory objects");
  std::vector<WireObject> objects;
  objects.reserve(in.size());
  for (const rpc::AgentObject::Reader one : in) {
    TERRACE_ASSIGN_OR_RETURN(WireObject object, read_object(one));
    objects.push_back(std::move(object));
  }
  return objects;
}

Result<std::vector<SeenDevice>> read_devices(capnp::List<rpc::AgentDevice>::Reader in) {
  if (in.size() > agent_devices_max) return impossible("number of devices");
  std::vector<SeenDevice> devices;
  for (const rpc::AgentDevice::Reader one : in) {
    SeenDevice device;
    device.serial = text(one.getSerial());
    device.backend = text(one.getBackend());
    device.capacity_bytes = one.getCapacityBytes();
    device.granule_bytes = one.getGranuleBytes();
    const bool granule = device.granule_bytes >= 4096 && device.granule_bytes <= limits::granule_bytes_max &&
                         (device.granule_bytes & (device.granule_bytes - 1)) == 0;
    if (!valid_name(device.serial) || !valid_name(device.backend) || device.capacity_bytes > object_bytes_max ||
        !granule)
      return impossible("device");
    devices.push_back(std::move(device));
  }
  return devices;
}

Status read_error(rpc::Error::Reader in, const char* where) {
  if (in.getCode() == 0) return {};
  std::string detail = text(in.getDetail());
  if (!valid_utf8(detail) || detail.size() > 4096) detail = "(an unreadable text)";
  return Error{.code = error_code_from_wire(in.getCode()),
               .os_errno = in.getOsErrno(),
               .where = where,
               .detail = std::move(detail)};
}

}  // namespace terrace::daemon
