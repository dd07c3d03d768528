// SPDX-License-Identifier: Apache-2.0
// KvSpace: a cache of immutable blocks, found by key, that processes share.
#include <filesystem>

#include "bindings/python/kv/kv.h"
#include "bindings/python/memory.h"
#include "bindings/python/values.h"
#include "terrace/kv_local.h"
#include "terrace/kv_members.h"
#include "terrace/kv_spill.h"

namespace terrace::python {
namespace {

constexpr const char* kv_where = "KvSpace";

bool is_path(const py::object& given) {
  return py::isinstance<py::str>(given) || py::hasattr(given, "__fspath__");
}

void format(const py::object& given, const py::object& nbytes, uint32_t parts, const py::object& seats,
            uint64_t block_bytes, const py::object& max_block_bytes, uint32_t pins, const py::object& coherence,
            const py::object& checksums, const py::object& ownership) {
  KvFormatOptions options{.parts = parts, .block_bytes = block_bytes, .pins = pins};
  constexpr uint32_t holders_max = 64;
  options.seats = seats.is_none() ? std::min(options.seats, holders_max - std::min(parts, holders_max))
                                  : seats.cast<uint32_t>();
  if (!max_block_bytes.is_none()) options.max_block_bytes = max_block_bytes.cast<uint64_t>();
  if (!coherence.is_none()) options.coherence = coherence_of(coherence.cast<std::string>());
  if (!checksums.is_none()) options.checksums = static_cast<bool>(py::bool_(checksums));
  if (!ownership.is_none()) options.ownership = ownership_of(ownership.cast<std::string>());
  if (py::isinstance<LeaseObject>(given)) options.lease_epoch = given.cast<const LeaseObject&>().lease->epoch();
  std::optional<uint64_t> make_bytes;
  if (!nbytes.is_none()) make_bytes = nbytes.cast<uint64_t>();
  if (make_bytes && !is_path(given)) raise_invalid("nbytes is for the path of a file that is to be made");
  const Memory memory =
      is_path(given) ? memory_of_file(path_of(given), make_bytes, kv_where) : memory_of(given, kv_where);
  take(without_gil([&] { return KvSpace::format(memory.bytes, options); }));
}

// Of bare memory, without a name: that alone.
KvSpaceObject attach_memory(Memory memory, KvAttachOptions options, const std::string& name_space,
                            const std::string& where = "", std::shared_ptr<Session> session = nullptr) {
  KvNamespace names = kv_namespace(name_space);
  if (where.empty()) {
    std::shared_ptr<KvSpace> space =
        take(without_gil([&] { return KvSpace::attach(memory.bytes, std::move(options)); }));
    return {ends_without_gil(kept_by(std::move(memory.keep), std::move(space))), std::move(names)};
  }
  KvMemberMemory first{.bytes = memory.bytes, .ownership = options.ownership, .keep = memory.keep};
  if (memory.lease != nullptr) first.lease_epoch = memory.lease->epoch();
  std::shared_ptr<JoinedKvSpace> joined = ends_without_gil(std::shared_ptr<JoinedKvSpace>(take(without_gil([&] {
    return JoinedKvSpace::attach(
        std::move(first), where,
        {.attach = std::move(options), .open = kv_members_by_session(std::move(session))});
  }))));
  KvSpaceObject made{joined, std::move(names)};
  made.joined = std::move(joined);
  return made;
}

// `folder` None: without.
void add_spill(KvAttachOptions& options, const py::object& folder, uint64_t bytes) {
  if (folder.is_none()) return;
  const std::string path = path_of(folder);
  options.spill =
      take(without_gil([&] { return KvSpill::open(path, {.bytes = bytes, .puts = options.puts}); }));
}

// 0 bytes: without.
void add_local(KvAttachOptions& options, uint64_t bytes) {
  if (bytes != 0) options.local = take(KvLocal::open({.bytes = bytes}));
}

KvSpaceObject attach(const py::object& given, const std::string& name_space, const py::object& fd, bool puts,
                     uint64_t host, bool tends_itself, const py::object& spill, uint64_t spill_bytes,
                     uint64_t local_bytes, const py::object& session) {
  Memory memory = memory_of(given, kv_where);
  KvAttachOptions options{.puts = puts, .host = host, .tends_itself = tends_itself};
  if (!fd.is_none())
    options.ownership = take(ownership_by_locks(fd.cast<int>()));
  else if (memory.lease != nullptr)
    options.ownership = take(ownership_by_manager(memory.lease));
  else if (puts)
    raise_invalid(
        "whoever puts blocks locks a part in the memory's file: give its descriptor, fd=, or puts=False");
  add_spill(options, spill, spill_bytes);
  add_local(options, local_bytes);
  std::string where;
  std::shared_ptr<Session> finds;
  if (memory.lease != nullptr) where = without_gil([&] { return kv_where_of_lease(*memory.lease); });
  if (!session.is_none())
    finds = session.cast<const SessionObject&>().open();
  else if (py::isinstance<LeaseObject>(given))
    finds = given.cast<const LeaseObject&>().session;
  return attach_memory(std::move(memory), std::move(options), name_space, where, std::move(finds));
}

KvSpaceObject open_file(const py::object& path, const std::string& name_space, bool puts, uint64_t host,
                        bool tends_itself, const py::object& spill, uint64_t spill_bytes, uint64_t local_bytes,
                        const py::object& session) {
  Memory memory = memory_of_file(path_of(path), std::nullopt, kv_where);
  KvAttachOptions options{.puts = puts, .host = host, .tends_itself = tends_itself};
  options.ownership = take(ownership_by_locks(memory.file.get()));
  add_spill(options, spill, spill_bytes);
  add_local(options, local_bytes);
  std::shared_ptr<Session> finds;
  if (!session.is_none()) finds = session.cast<const SessionObject&>().open();
  return attach_memory(std::move(memory), std::move(options), name_space,
                       std::filesystem::absolute(path_of(path)).lexically_normal().string(), std::move(finds));
}

bool erase(const KvSpaceObject& self, const py::object& key, const py::object& wait,
           const py::object& name_space) {
  const auto space = self.open();
  const KvNamespace names = kv_namespace(self, name_space);
  const std::string_view wanted = kv_key(key);
  bool was_busy = false;  // in an earlier call, which asked the owner to erase it
  const Status erased = patiently(nanoseconds(wait), [&](uint64_t wait_ns) {
    Status status = space->erase(names, wanted, wait_ns);
    was_busy = was_busy || (!status.ok() && status.error().code == ErrorCode::busy);
    return status;
  });
  if (!erased.ok() && kv_is_missing(erased.error())) return was_busy;
  take(erased);
  return true;
}

uint64_t flush(const KvSpaceObject& self, bool everything, const py::object& wait,
               const py::object& name_space) {
  const auto space = self.open();
  if (everything && !name_space.is_none()) raise_invalid("everything=True has no namespace");
  std::optional<KvNamespace> names;
  if (!everything) names = kv_namespace(self, name_space);
  const uint64_t wait_ns = nanoseconds(wait);
  return take(without_gil([&] { return space->flush(names, wait_ns); }));
}

py::object block_info(const KvBlockInfo& of) {
  const auto& [name_space, key, bytes, part, expires_unix_s, used_unix_s, has_parent, has_checksum, member] =
      of;
  return named("KvBlockInfo", py::dict(py::arg("namespace") = name_space, py::arg("key") = py::bytes(key),
                                       py::arg("nbytes") = bytes, py::arg("part") = part,
                                       py::arg("expires_unix_s") = expires_unix_s,
                                       py::arg("used_unix_s") = used_unix_s, py::arg("has_parent") = has_parent,
                                       py::arg("has_checksum") = has_checksum, py::arg("member") = member));
}

py::list infos_of(const std::vector<KvBlockInfo>& blocks) {
  py::list infos;
  for (const KvBlockInfo& block : blocks) infos.append(block_info(block));
  return infos;
}

py::list list(const KvSpaceObject& self) {
  const auto space = self.open();
  std::vector<KvBlockInfo> blocks;
  take(without_gil([&] {
    return space->list([&](const KvBlockInfo& block) {
      blocks.push_back(block);
      return true;
    });
  }));
  return infos_of(blocks);
}

py::object part_info(const KvPartInfo& of) {
  const auto& [part, host, state, blocks, block_bytes, chunk_bytes, member] = of;
  return named("KvPartInfo", py::dict(py::arg("part") = part, py::arg("host") = host, py::arg("state") = state,
                                      py::arg("blocks") = blocks, py::arg("block_bytes") = block_bytes,
                                      py::arg("chunk_bytes") = chunk_bytes, py::arg("member") = member));
}

py::object member_info(const KvMemberInfo& of) {
  const auto& [where, state, loss, data_bytes, free_bytes, blocks, block_bytes, older_policy] = of;
  return named("KvMemberInfo",
               py::dict(py::arg("where") = where, py::arg("state") = state, py::arg("loss") = loss,
                        py::arg("data_bytes") = data_bytes, py::arg("free_bytes") = free_bytes,
                        py::arg("blocks") = blocks, py::arg("block_bytes") = block_bytes,
                        py::arg("older_policy") = older_policy));
}

const std::shared_ptr<JoinedKvSpace>& joined_of(const KvSpaceObject& self) {
  (void)self.open();
  if (self.joined == nullptr)
    raise(
        Error{ErrorCode::unsupported, 0, kv_where,
              "the space was attached by bare memory: it has this member alone; attach its lease or its file"});
  return self.joined;
}

void grow(const KvSpaceObject& self, const std::string& where) {
  const auto joined = joined_of(self);
  take(without_gil([&] { return joined->grow(where); }));
}

py::object shrink(const KvSpaceObject& self, const std::string& where, const py::object& wait) {
  const auto joined = joined_of(self);
  const uint64_t wait_ns = nanoseconds(wait);
  const KvShrunk told = take(without_gil([&] { return joined->shrink(where, wait_ns); }));
  const auto& [moved, moved_bytes, left_behind, holders] = told;
  return named("KvShrunk", py::dict(py::arg("moved") = moved, py::arg("moved_bytes") = moved_bytes,
                                    py::arg("left_behind") = left_behind, py::arg("holders") = holders));
}

py::object budget_of(const KvBudget& of) {
  return named("KvBudget", py::dict(py::arg("namespaces") = of.namespaces, py::arg("nbytes") = of.bytes));
}

py::object policy(const KvSpaceObject& self) {
  const auto space = self.open();
  const KvPolicy told = take(without_gil([&] { return space->policy(); }));
  py::list budgets, kept;
  for (const KvBudget& budget : told.budgets) budgets.append(budget_of(budget));
  for (const KvKept& one : told.kept)
    kept.append(
        named("KvKept", py::dict(py::arg("namespaces") = one.namespaces, py::arg("key") = py::bytes(one.key))));
  return named("KvPolicy", py::dict(py::arg("budgets") = budgets, py::arg("kept") = kept));
}

KvPolicy policy_from(const py::dict& budgets, const py::iterable& kept) {
  KvPolicy policy;
  for (const auto& [namespaces, nbytes] : budgets)
    policy.budgets.push_back({.namespaces = namespaces.cast<std::string>(), .bytes = nbytes.cast<uint64_t>()});
  for (const py::handle one : kept) {
    if (py::isinstance<py::str>(one)) {
      policy.kept.push_back({.namespaces = one.cast<std::string>()});
      continue;
    }
    const auto pair = one.cast<py::tuple>();
    if (pair.size() != 2) throw py::cast_error();
    policy.kept.push_back({.namespaces = pair[0].cast<std::string>(),
                           .key = py::len(pair[1]) == 0 ? "" : std::string(kv_key(pair[1]))});
  }
  return policy;
}

void set_policy(const KvSpaceObject& self, const py::dict& budgets, const py::iterable& kept) {
  const auto space = self.open();
  KvPolicy policy;
  try {
    policy = policy_from(budgets, kept);
  } catch (const py::cast_error&) {
    throw py::type_error(
        "budgets: a dict of namespaces and bytes; kept: namespaces, or pairs of a namespace and a key");
  }
  take(without_gil([&] { return space->set_policy(policy); }));
}

py::object stat(const KvSpaceObject& self) {
  const auto space = self.open();
  const KvStat told = take(without_gil([&] { return space->stat(); }));
  const auto& [data_bytes, free_bytes, blocks, block_bytes, blocks_max, max_block_bytes, coherence, checksums,
               parts, budgets, kept_bytes, local_blocks, local_bytes, local_max_bytes, members] = told;
  py::list part_infos, budget_uses, member_infos;
  for (const KvMemberInfo& member : members) member_infos.append(member_info(member));
  for (const KvBudgetUse& use : budgets)
    budget_uses.append(py::make_tuple(budget_of(use.budget), use.used_bytes));
  for (const KvPartInfo& part : parts) part_infos.append(part_info(part));
  const bool coherent = coherence == SpaceCoherence::coherent;
  return named("KvStat",
               py::dict(py::arg("data_bytes") = data_bytes, py::arg("free_bytes") = free_bytes,
                        py::arg("blocks") = blocks, py::arg("block_bytes") = block_bytes,
                        py::arg("blocks_max") = blocks_max, py::arg("max_block_bytes") = max_block_bytes,
                        py::arg("coherence") = coherent ? "coherent" : "noncoherent",
                        py::arg("checksums") = checksums, py::arg("parts") = part_infos,
                        py::arg("budgets") = budget_uses, py::arg("kept_bytes") = kept_bytes,
                        py::arg("local_blocks") = local_blocks, py::arg("local_bytes") = local_bytes,
                        py::arg("local_max_bytes") = local_max_bytes, py::arg("members") = member_infos));
}

py::object counters(const KvSpaceObject& self) {
  const auto [hits, misses, hit_bytes, puts, put_bytes, puts_refused, evicted, evicted_bytes, expired, erased,
              chunks_given, parts_adopted, spilled, spill_hits, spill_dropped, local_hits, local_hit_bytes,
              local_copied, local_evicted, local_stale, members_joined, members_lost] = self.open()->counters();
  return named(
      "KvCounters",
      py::dict(py::arg("hits") = hits, py::arg("misses") = misses, py::arg("hit_bytes") = hit_bytes,
               py::arg("puts") = puts, py::arg("put_bytes") = put_bytes, py::arg("puts_refused") = puts_refused,
               py::arg("evicted") = evicted, py::arg("evicted_bytes") = evicted_bytes,
               py::arg("expired") = expired, py::arg("erased") = erased, py::arg("chunks_given") = chunks_given,
               py::arg("parts_adopted") = parts_adopted, py::arg("spilled") = spilled,
               py::arg("spill_hits") = spill_hits, py::arg("spill_dropped") = spill_dropped,
               py::arg("local_hits") = local_hits, py::arg("local_hit_bytes") = local_hit_bytes,
               py::arg("local_copied") = local_copied, py::arg("local_evicted") = local_evicted,
               py::arg("local_stale") = local_stale, py::arg("members_joined") = members_joined,
               py::arg("members_lost") = members_lost));
}

py::object verify(const KvSpaceObject& self) {
  const auto space = self.open();
  const KvVerified told = take(without_gil([&] { return space->verify(); }));
  const auto& [blocks, bytes, without_checksum, changed, wrong] = told;
  return named("KvVerified", py::dict(py::arg("blocks") = blocks, py::arg("nbytes") = bytes,
                                      py::arg("without_checksum") = without_checksum,
                                      py::arg("changed") = changed, py::arg("wrong") = infos_of(wrong)));
}

void add_making(KvSpaceClass& spaces) {
  const KvFormatOptions defaults;
  spaces
      .def_static(
          "format", &format, py::arg("memory"), py::kw_only(), py::arg("nbytes") = py::none(),
          py::arg("parts") = defaults.parts, py::arg("seats") = py::none(),
          py::arg("block_bytes") = defaults.block_bytes, py::arg("max_block_bytes") = py::none(),
          py::arg("pins") = defaults.pins, py::arg("coherence") = py::none(), py::arg("checksums") = py::none(),
          py::arg("ownership") = py::none(),
          "Makes an empty space of a lease, of other memory, or of the file of a path; what was there is "
          "lost. nbytes: makes that file so long. parts: processes that put at once; seats: those that only "
          "read in place; block_bytes: the size of most blocks.")
      .def_static("attach", &attach, py::arg("memory"), py::kw_only(), py::arg("namespace") = "",
                  py::arg("fd") = py::none(), py::arg("puts") = true, py::arg("host") = 0,
                  py::arg("tends_itself") = true, py::arg("spill") = py::none(), py::arg("spill_bytes") = 0,
                  py::arg("local_bytes") = 0, py::arg("session") = py::none(),
                  "Opens the space in a lease, with all its members, or in other memory. session: attaches "
                  "members that "
                  "are leases, where it is not a Lease that is given. spill: a folder of a local disk, where "
                  "evicted blocks "
                  "go, of so many bytes. local_bytes: for copies of hot blocks in this process's own memory. "
                  "puts: whether it takes a part with its first "
                  "put(); fd: the memory's file, where it is no lease's; namespace: of calls that name none.")
      .def_static("open", &open_file, py::arg("path"), py::kw_only(), py::arg("namespace") = "",
                  py::arg("puts") = true, py::arg("host") = 0, py::arg("tends_itself") = true,
                  py::arg("spill") = py::none(), py::arg("spill_bytes") = 0, py::arg("local_bytes") = 0,
                  py::arg("session") = py::none(),
                  "Opens the space in a file, for example of /dev/shm, with all its members.")
      .def(
          "close", [](KvSpaceObject& self) { self.close(); },
          "No more calls; its part is given back once its views and writes are gone.")
      .def(
          "__enter__", [](py::object self) { return self; }, "The space itself.")
      .def(
          "__exit__", [](KvSpaceObject& self, const py::args&) { self.close(); }, "As close().");
}

void add_care(KvSpaceClass& spaces) {
  spaces
      .def("erase", &erase, py::arg("key"), py::kw_only(), py::arg("wait") = 1.0,
           py::arg("namespace") = py::none(), "Erases a block. False: it was not there. Raises Busy.")
      .def(
          "evict",
          [](const KvSpaceObject& self, uint64_t nbytes) {
            const auto space = self.open();
            return take(without_gil([&] { return space->evict(nbytes); }));
          },
          py::arg("nbytes"),
          "Erases the blocks not used for longest until that many bytes are gone; how many blocks.")
      .def("flush", &flush, py::kw_only(), py::arg("everything") = false, py::arg("wait") = 5.0,
           py::arg("namespace") = py::none(),
           "Erases all blocks of the namespace, or of all; how many. Raises Busy where some are left.")
      .def("list", &list, "All blocks, of all namespaces.")
      .def("stat", &stat, "How full it is, and who has which part.")
      .def("counters", &counters, "What this process did since it attached.")
      .def("verify", &verify, "Compares every block with its checksum.")
      .def("grow", &grow, py::arg("where"),
           "Makes a lease (its id or label), or a file (a path with a '/'), a member of the space. Raises "
           "AlreadyExists where it has something else, Busy.")
      .def("shrink", &shrink, py::arg("where"), py::kw_only(), py::arg("wait") = 30.0,
           "Makes a member leave: its blocks move to the others as far as there is room. wait: for others to "
           "let "
           "go of it. Raises NotFound, Busy.")
      .def("policy", &policy, "Budgets, and what is kept.")
      .def("set_policy", &set_policy, py::kw_only(), py::arg("budgets") = py::dict(),
           py::arg("kept") = py::tuple(),
           "Another policy in the place of the one there is. budgets: of namespaces, in bytes; kept: "
           "namespaces, or pairs of "
           "a namespace and a key, whose blocks no want of room takes. Raises InvalidArgument, Busy, "
           "CapacityExhausted.")
      .def(
          "tend",
          [](const KvSpaceObject& self) {
            const auto space = self.open();
            without_gil([&] { space->tend(); });
          },
          "Does what other processes wait for; with tends_itself=False, for one that makes no other call.")
      .def(
          "health", [](const KvSpaceObject& self) { take(self.open()->health()); },
          "Raises LeaseExpired where the space's memory is gone, and for good.")
      .def_property_readonly(
          "namespace", [](const KvSpaceObject& self) { return self.name_space.name(); },
          "Of calls that name none.")
      .def_property_readonly(
          "part",
          [](const KvSpaceObject& self) -> py::object {
            const auto part = self.open()->part();
            return part ? py::object(py::int_(*part)) : py::object(py::none());
          },
          "The part that this process owns, once it has put something; None: none.");
}

}  // namespace

std::shared_ptr<KvSpace> KvSpaceObject::open() const {
  if (space == nullptr) raise_closed("space");
  return space;
}

std::string_view kv_key(py::handle key) {
  Py_ssize_t size = 0;
  if (PyUnicode_Check(key.ptr())) {
    const char* const text = PyUnicode_AsUTF8AndSize(key.ptr(), &size);
    if (text == nullptr) throw py::error_already_set();
    return {text, static_cast<size_t>(size)};
  }
  if (!PyBytes_Check(key.ptr()))
    throw py::type_error("a key is a str or bytes, not " + py::repr(py::type::of(key)).cast<std::string>());
  return {PyBytes_AS_STRING(key.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(key.ptr()))};
}

KvKeys::KvKeys(const py::object& given) {
  if (PyUnicode_Check(given.ptr()) || PyBytes_Check(given.ptr()))
    throw py::type_error("several keys are a list or another iterable of them, not one str or bytes");
  objects = py::tuple(given);
  views.reserve(objects.size());
  for (const py::handle key : objects) views.push_back(kv_key(key));
}

KvNamespace kv_namespace(const std::string& name) {
  return name.empty() ? KvNamespace() : take(KvNamespace::of(name));
}

KvNamespace kv_namespace(const KvSpaceObject& self, const py::object& given) {
  return given.is_none() ? self.name_space : kv_namespace(given.cast<std::string>());
}

void add_kv(py::module_& module) {
  add_kv_view(module);
  add_kv_write(module);
  KvSpaceClass spaces(module, "KvSpace", "A cache of immutable blocks, found by key, that processes share.");
  add_making(spaces);
  add_kv_reads(spaces);
  add_kv_writes(spaces);
  add_care(spaces);
  module.def(
      "kv_namespace",
      [](const std::string& tenant, const std::string& model, const std::string& tokenizer,
         const std::string& layout, const std::string& dtype) {
        return take(KvNamespace::of(tenant, model, tokenizer, layout, dtype)).name();
      },
      py::kw_only(), py::arg("tenant") = "", py::arg("model") = "", py::arg("tokenizer") = "",
      py::arg("layout") = "", py::arg("dtype") = "",
      "The namespace of blocks that depend on all of these: a changed model, layout or type never meets old "
      "blocks.");
}

}  // namespace terrace::python
