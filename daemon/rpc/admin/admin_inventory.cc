// SPDX-License-Identifier: Apache-2.0
// The operator's interface: what CXL and DAX hardware the manager's machine shows. Looking asks firmware
// mailboxes and walks /proc, so that it is done on a worker; what the rows know of it (the lease that a dax
// device is) is added on the event loop.
#include "daemon/inventory/inventory.h"

#include "daemon/rpc/admin/admin.h"

namespace terrace::daemon {
namespace {

using inventory::DaxDevice;
using inventory::Inventory;

template <typename List>
void write_texts(List out, const std::vector<std::string>& texts) {
  for (uint32_t i = 0; i < out.size(); ++i) out.set(i, texts[i]);
}

uint32_t size_of(size_t count) {
  return static_cast<uint32_t>(count);
}

void write_memdev(rpc::Inventory::Memdev::Builder out, const inventory::Memdev& memdev, const Inventory& all) {
  out.setSerial(memdev.serial);
  out.setName(memdev.name);
  out.setModel(memdev.model);
  out.setFirmware(memdev.firmware);
  out.setHealth(memdev.health);
  out.setRamBytes(memdev.ram_bytes);
  out.setPmemBytes(memdev.pmem_bytes);
  out.setNumaNode(memdev.numa_node);
  out.setEnabled(memdev.enabled);
  out.setRamQosClass(memdev.ram_qos_class);
  out.setPmemQosClass(memdev.pmem_qos_class);
  write_texts(out.initPath(size_of(memdev.path.size())), memdev.path);
  std::vector<std::string> regions;
  for (const inventory::Region& region : all.regions)
    for (const std::string& serial : region.memdevs)
      if (serial == memdev.serial) regions.push_back(region.name);
  write_texts(out.initUsedBy(size_of(regions.size())), regions);
}

void write_decoder(rpc::Inventory::Decoder::Builder out, const inventory::Decoder& decoder) {
  out.setName(decoder.name);
  out.setKind(decoder.kind);
  out.setStart(decoder.start);
  out.setBytes(decoder.bytes);
  out.setFreeBytes(decoder.free_bytes);
  out.setInterleaveWays(decoder.ways);
  out.setInterleaveGranularity(decoder.granularity);
  write_texts(out.initTargets(size_of(decoder.targets.size())), decoder.targets);
  out.setPmem(decoder.pmem);
  out.setVolatile(decoder.ram);
  out.setRegion(decoder.region);
}

void write_region(rpc::Inventory::Region::Builder out, const inventory::Region& region) {
  out.setName(region.name);
  out.setSerial(region.serial());
  out.setKind(inventory::region_kind_name(region.kind));
  out.setStart(region.start);
  out.setBytes(region.bytes);
  out.setInterleaveWays(region.ways);
  out.setInterleaveGranularity(region.granularity);
  write_texts(out.initMemdevs(size_of(region.memdevs.size())), region.memdevs);
  out.setCommitted(region.committed);
  out.setPosition(region.position_bytes);
  out.setDecoder(region.decoder);
  write_attributes(out.initAttributes(),
                   {.latency_ns = region.speed.latency_ns,
                    .bandwidth_bytes_per_s = region.speed.bandwidth_bytes_per_s,
                    .persistent = region.kind == inventory::RegionKind::pmem,
                    .source = region.speed.known() ? AttributesSource::cdat : AttributesSource::none});
}

void write_dax_region(rpc::Inventory::DaxRegion::Builder out, const inventory::DaxRegion& region) {
  out.setName(region.name);
  out.setSerial(region.serial);
  out.setBytes(region.bytes);
  out.setFreeBytes(region.free_bytes);
  out.setAlignBytes(region.align_bytes);
  out.setDynamic(true);
  out.setNumaNode(region.target_node);
}

void write_dax_device(rpc::Inventory::DaxDevice::Builder out, const DaxDevice& device) {
  out.setName(device.name);
  out.setRegion(device.region);
  out.setMode(inventory::dax_mode_name(device.mode));
  out.setBytes(device.bytes);
  out.setAlignBytes(device.align_bytes);
  out.setNumaNode(device.target_node);
  out.setOnline(device.online);
  out.setHolder(device.holder);
}

void write_namespace(rpc::Inventory::Namespace::Builder out, const inventory::Namespace& space) {
  out.setName(space.name);
  out.setRegion(space.region);
  out.setMode(space.mode);
  out.setBytes(space.bytes);
  out.setUuid(space.uuid);
  out.setLabel(space.label);
  out.setDevice(space.device);
}

void write_node(rpc::Inventory::Node::Builder out, const inventory::NumaNode& node) {
  const os::NodeAttributes& has = node.attributes;
  out.setId(static_cast<uint32_t>(node.id));
  out.setCpus(has.has_cpus);
  out.setBytes(has.total_bytes);
  out.setFreeBytes(has.free_bytes);
  write_attributes(out.initAttributes(),
                   {.latency_ns = has.latency_ns,
                    .bandwidth_bytes_per_s = has.bandwidth_bytes_per_s,
                    .node = node.id,
                    .distance = has.distance,
                    .source = has.hmat() ? AttributesSource::hmat : AttributesSource::none});
}

template <typename Builders, typename Things, typename Write>
void write_all(Builders out, const Things& things, Write write) {
  for (uint32_t i = 0; i < out.size(); ++i) write(out[i], things[i]);
}

void write_inventory(rpc::Inventory::Builder out, const Inventory& all) {
  write_all(out.initMemdevs(size_of(all.memdevs.size())), all.memdevs,
            [&all](auto entry, const inventory::Memdev& memdev) { write_memdev(entry, memdev, all); });
  write_all(out.initDecoders(size_of(all.decoders.size())), all.decoders, write_decoder);
  write_all(out.initRegions(size_of(all.regions.size())), all.regions, write_region);
  write_all(out.initDaxRegions(size_of(all.dax_regions.size())), all.dax_regions, write_dax_region);
  write_all(out.initDaxDevices(size_of(all.dax_devices.size())), all.dax_devices, write_dax_device);
  write_all(out.initNamespaces(size_of(all.namespaces.size())), all.namespaces, write_namespace);
  write_all(out.initNodes(size_of(all.numa_nodes.size())), all.numa_nodes, write_node);
  write_texts(out.initNotes(size_of(all.notes.size())), all.notes);
}

// The lease whose memory begins where the device does; null: none.
const LeaseRow* lease_at(const StateMachine& state, const DeviceRow& device, uint64_t offset_bytes) {
  for (const auto& [id, lease] : state.leases())
    if (!lease.extents.empty() && lease.extents.front().device == device.id &&
        lease.extents.front().first_granule * device.granule_bytes == offset_bytes)
      return &lease;
  return nullptr;
}

// A namespace carries its lease's object as its alternative name.
const LeaseRow* lease_of_object(const StateMachine& state, const std::string& label) {
  for (const auto& [id, lease] : state.leases())
    if (!label.empty() && (lease.object == label || lease.object.ends_with(":" + label))) return &lease;
  return nullptr;
}

const LeaseRow* lease_of(const StateMachine& state, const Inventory& all, const DaxDevice& dax) {
  for (const inventory::Namespace& space : all.namespaces)
    if (space.device == dax.name) return lease_of_object(state, space.label);
  for (const inventory::DaxRegion& region : all.dax_regions) {
    if (region.name != dax.region || region.start == 0 || dax.start < region.start) continue;
    const DeviceRow* device = state.find_device(region.serial);
    return device == nullptr ? nullptr : lease_at(state, *device, dax.start - region.start);
  }
  return nullptr;
}

void name_leases(const StateMachine& state, Inventory& all) {
  for (DaxDevice& dax : all.dax_devices)
    if (const LeaseRow* lease = lease_of(state, all, dax))
      dax.holder = "lease " + std::to_string(lease->id.value) + (dax.holder.empty() ? "" : ", " + dax.holder);
}

}  // namespace

kj::Promise<void> AdminServer::inventory(InventoryContext context) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    return engine()
        .run_blocking([] { return inventory::take_inventory(); })
        .then([this, context](Inventory all) mutable {
          name_leases(state(), all);
          write_inventory(context.getResults().initInventory(), all);
        })
        .attach(kj::mv(*slot));
  }
  return kj::READY_NOW;
}

// For one who would adopt what cannot be adopted: why, and what can.
kj::Promise<void> AdminServer::refuse_unseen(AdoptContext context, const std::string& serial) {
  KJ_IF_MAYBE (slot, admit(*connection_, context)) {
    return engine()
        .run_blocking([serial] {
          return explain_unadoptable(inventory::take_inventory({.health = false, .holders = false}), serial);
        })
        .then([context, serial](std::string why) mutable {
          refuse(context, why.empty() ? unknown_device(serial)
                                      : Error{.code = ErrorCode::unsupported, .where = "adopt", .detail = why});
        })
        .attach(kj::mv(*slot));
  }
  return kj::READY_NOW;
}

}  // namespace terrace::daemon
