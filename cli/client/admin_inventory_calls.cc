// The operator's call about hardware, as the inventory's own structs: what `terrace device list` shows is what
// `terrace doctor` would see on the manager's machine.
#include "cli/client/admin_impl.h"
#include "daemon/inventory/inventory.h"

namespace terrace::cli {
namespace {

using inventory::Inventory;

std::string text(capnp::Text::Reader words) {
  return std::string(words.begin(), words.end());
}

std::vector<std::string> texts(capnp::List<capnp::Text>::Reader list) {
  std::vector<std::string> all;
  for (const auto entry : list) all.push_back(text(entry));
  return all;
}

inventory::Memdev read(rpc::Inventory::Memdev::Reader in) {
  return {.serial = text(in.getSerial()),
          .name = text(in.getName()),
          .ram_bytes = in.getRamBytes(),
          .pmem_bytes = in.getPmemBytes(),
          .numa_node = in.getNumaNode(),
          .firmware = text(in.getFirmware()),
          .enabled = in.getEnabled(),
          .model = text(in.getModel()),
          .health = text(in.getHealth()),
          .path = texts(in.getPath()),
          .ram_qos_class = in.getRamQosClass(),
          .pmem_qos_class = in.getPmemQosClass()};
}

inventory::Decoder read(rpc::Inventory::Decoder::Reader in) {
  return {.name = text(in.getName()),
          .kind = text(in.getKind()),
          .start = in.getStart(),
          .bytes = in.getBytes(),
          .free_bytes = in.getFreeBytes(),
          .ways = in.getInterleaveWays(),
          .granularity = in.getInterleaveGranularity(),
          .targets = texts(in.getTargets()),
          .pmem = in.getPmem(),
          .ram = in.getVolatile(),
          .region = text(in.getRegion())};
}

inventory::Region read(rpc::Inventory::Region::Reader in) {
  return {.name = text(in.getName()),
          .kind = text(in.getKind()) == "ram" ? inventory::RegionKind::ram : inventory::RegionKind::pmem,
          .start = in.getStart(),
          .bytes = in.getBytes(),
          .ways = in.getInterleaveWays(),
          .granularity = in.getInterleaveGranularity(),
          .memdevs = texts(in.getMemdevs()),
          .position_bytes = in.getPosition(),
          .committed = in.getCommitted(),
          .decoder = text(in.getDecoder()),
          .speed = {.latency_ns = in.getAttributes().getLatencyNs(),
                    .bandwidth_bytes_per_s = in.getAttributes().getBandwidthBytesPerS()}};
}

inventory::DaxRegion read(rpc::Inventory::DaxRegion::Reader in) {
  return {.name = text(in.getName()),
          .serial = text(in.getSerial()),
          .bytes = in.getBytes(),
          .free_bytes = in.getFreeBytes(),
          .align_bytes = in.getAlignBytes(),
          .target_node = in.getNumaNode()};
}

inventory::DaxDevice read(rpc::Inventory::DaxDevice::Reader in) {
  const std::string mode = text(in.getMode());
  return {.name = text(in.getName()),
          .region = text(in.getRegion()),
          .mode = mode == "devdax"       ? inventory::DaxMode::devdax
                  : mode == "system-ram" ? inventory::DaxMode::system_ram
                                         : inventory::DaxMode::disabled,
          .bytes = in.getBytes(),
          .align_bytes = in.getAlignBytes(),
          .target_node = in.getNumaNode(),
          .online = in.getOnline(),
          .holder = text(in.getHolder())};
}

inventory::Namespace read(rpc::Inventory::Namespace::Reader in) {
  return {.name = text(in.getName()),
          .region = text(in.getRegion()),
          .mode = text(in.getMode()),
          .bytes = in.getBytes(),
          .uuid = text(in.getUuid()),
          .label = text(in.getLabel()),
          .device = text(in.getDevice())};
}

inventory::NumaNode read(rpc::Inventory::Node::Reader in) {
  const auto attributes = in.getAttributes();
  os::NodeAttributes node;
  node.exists = true;
  node.has_cpus = in.getCpus();
  node.total_bytes = in.getBytes();
  node.free_bytes = in.getFreeBytes();
  node.latency_ns = attributes.getLatencyNs();
  node.bandwidth_bytes_per_s = attributes.getBandwidthBytesPerS();
  node.distance = attributes.getNumaDistance();
  return {static_cast<int>(in.getId()), node};
}

template <typename Thing, typename List>
std::vector<Thing> read_list(List list) {
  std::vector<Thing> all;
  for (const auto entry : list) all.push_back(read(entry));
  return all;
}

}  // namespace

Result<Inventory> AdminClient::inventory() {
  return impl_->call(impl_->admin.inventoryRequest(), "Admin.inventory", [](auto& reply) {
    const auto in = reply.getInventory();
    Inventory all;
    all.memdevs = read_list<inventory::Memdev>(in.getMemdevs());
    all.decoders = read_list<inventory::Decoder>(in.getDecoders());
    all.regions = read_list<inventory::Region>(in.getRegions());
    all.dax_regions = read_list<inventory::DaxRegion>(in.getDaxRegions());
    all.dax_devices = read_list<inventory::DaxDevice>(in.getDaxDevices());
    all.namespaces = read_list<inventory::Namespace>(in.getNamespaces());
    all.numa_nodes = read_list<inventory::NumaNode>(in.getNodes());
    all.notes = texts(in.getNotes());
    return all;
  });
}

Status AdminClient::offline(const std::string& serial) {
  auto request = impl_->admin.offlineRequest();
  request.setSerial(serial);
  return impl_->call(kj::mv(request), "Admin.offline");
}

}  // namespace terrace::cli
