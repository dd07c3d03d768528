// SPDX-License-Identifier: Apache-2.0
// KV spaces for C: making them, taking part in them, and their care.
#include "libclient/c_api/kv.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "libclient/c_api/call.h"
#include "libclient/c_api/handles.h"
#include "terrace/kv_local.h"
#include "terrace/kv_spill.h"

using namespace terrace;
using namespace terrace::c_api;

namespace terrace::c_api {

Result<KvNamespace> kv_namespace_of(const char* name) {
  if (name == nullptr || *name == '\0') return KvNamespace();
  return KvNamespace::of(name);
}

Result<std::string_view> kv_key_of(const void* key, size_t key_bytes, const char* where) {
  if (key == nullptr) return invalid(where, "key is NULL");
  return std::string_view(static_cast<const char*>(key), key_bytes);
}

Result<std::vector<std::string_view>> kv_keys_of(const terrace_kv_key* keys, size_t count, const char* where) {
  if (count > 0) TERRACE_C_NEED(where, keys);
  std::vector<std::string_view> views;
  views.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    TERRACE_ASSIGN_OR_RETURN(const std::string_view key, kv_key_of(keys[i].data, keys[i].bytes, where));
    views.push_back(key);
  }
  return views;
}

}  // namespace terrace::c_api

namespace {

// All of a file, mapped as long as this lives.
class KvFile {
 public:
  // Errors    invalid_argument  no descriptor, or of what has no length: a directory, a device, an empty file
  //           as of mmap
  static Result<std::shared_ptr<KvFile>> map(int fd, const char* where) {
    struct stat status {};
    if (::fstat(fd, &status) != 0) {
      if (errno == EBADF) return invalid(where, std::to_string(fd) + " is no descriptor");
      return os_error(errno, where, "cannot look at the space's file");
    }
    if (!S_ISREG(status.st_mode) || status.st_size <= 0)
      return invalid(where,
                     "the descriptor is of no file with bytes: a device's memory is mapped by the program");
    const auto bytes = static_cast<size_t>(status.st_size);
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return os_error(errno, where, "cannot map the space's file");
    return std::make_shared<KvFile>(std::span{static_cast<std::byte*>(memory), bytes});
  }
  explicit KvFile(std::span<std::byte> bytes) : bytes_(bytes) {}
  KvFile(const KvFile&) = delete;
  KvFile& operator=(const KvFile&) = delete;
  ~KvFile() { (void)::munmap(bytes_.data(), bytes_.size()); }

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  const std::span<std::byte> bytes_;
};

Error kv_newer(const char* where) {
  return Error{ErrorCode::version_mismatch, 0, where, "reserved is not 0: built for a newer libterrace"};
}

Result<KvFormatOptions> kv_format_options(const terrace_kv_format_options* options, const char* where) {
  TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
  if (given.reserved != 0) return kv_newer(where);
  KvFormatOptions wanted;
  constexpr uint32_t holders_max = 64;
  if (given.parts != 0) wanted.parts = given.parts;
  wanted.seats = std::min(wanted.seats, holders_max - std::min(wanted.parts, holders_max));
  if (given.seats != 0) wanted.seats = given.seats;
  if (given.block_bytes != 0) wanted.block_bytes = given.block_bytes;
  if (given.max_block_bytes != 0) wanted.max_block_bytes = given.max_block_bytes;
  if (given.pins != 0) wanted.pins = given.pins;
  if (given.checksums < 0 || given.checksums > TERRACE_CHECKSUMS_OFF)
    return invalid(where, std::to_string(given.checksums) + " is none of TERRACE_CHECKSUMS_...");
  if (given.checksums != TERRACE_CHECKSUMS_BY_COHERENCE)
    wanted.checksums = given.checksums == TERRACE_CHECKSUMS_ON;
  TERRACE_ASSIGN_OR_RETURN(const auto coherence,
                           enum_of<SpaceCoherence>(given.coherence, 2, "coherence (TERRACE_SPACE_...)", where));
  if (given.set_coherence != 0 || coherence == SpaceCoherence::noncoherent) wanted.coherence = coherence;
  TERRACE_ASSIGN_OR_RETURN(const auto ownership,
                           enum_of<SpaceOwnership>(given.ownership, TERRACE_OWNERS_BY_PROGRAM + 1,
                                                   "kind of ownership (TERRACE_OWNERS_...)", where));
  if (given.ownership != TERRACE_OWNERS_AS_THE_FIRST) wanted.ownership = ownership;
  wanted.lease_epoch = LeaseEpoch{given.lease_epoch};
  return wanted;
}

// A space and all its other members: leases by the session of the options.
Result<std::unique_ptr<terrace_kv>> kv_join(KvMemberMemory first, const std::string& called,
                                            KvAttachOptions wanted, std::shared_ptr<Session> session) {
  if (wanted.ownership != nullptr) first.ownership = wanted.ownership;
  TERRACE_ASSIGN_OR_RETURN(
      std::shared_ptr<JoinedKvSpace> made,
      JoinedKvSpace::attach(std::move(first), called,
                            {.attach = std::move(wanted), .open = kv_members_by_session(std::move(session))}));
  return std::unique_ptr<terrace_kv>(new terrace_kv{made, made});
}

Result<KvAttachOptions> kv_attach_options(const terrace_kv_attach_options* options, const char* where) {
  TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
  KvAttachOptions wanted;
  if (given.ownership != nullptr) wanted.ownership = given.ownership->source;
  wanted.puts = given.reads_only == 0;
  wanted.host = given.host;
  wanted.tends_itself = given.tended_by_caller == 0;
  if (given.spill_folder != nullptr) {
    TERRACE_ASSIGN_OR_RETURN(
        wanted.spill, KvSpill::open(given.spill_folder, {.bytes = given.spill_bytes, .puts = wanted.puts}));
  }
  if (given.local_bytes != 0) {
    TERRACE_ASSIGN_OR_RETURN(wanted.local, KvLocal::open({.bytes = given.local_bytes}));
  }
  return wanted;
}

Result<std::shared_ptr<Session>> kv_session_of(const terrace_kv_attach_options* options, const char* where) {
  TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
  return given.session == nullptr ? nullptr : given.session->session;
}

// What others call the file. Empty: it has no name.
std::string path_of_fd(int fd) {
  char path[kv_member_where_bytes_max];
  const ssize_t length = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  const std::string_view found(path, static_cast<size_t>(std::max<ssize_t>(length, 0)));
  return std::string(found.starts_with('/') && found.size() < sizeof path ? found : "");
}

Error kv_alone(const char* where) {
  return Error{ErrorCode::unsupported, 0, where,
               "the space was attached by bare memory: it has this member alone; attach its lease or its file"};
}

Status give_erased(Result<uint64_t> erased, uint64_t* into) {
  if (!erased.ok()) return std::move(erased).error();
  if (into != nullptr) *into = *erased;
  return {};
}

}  // namespace

extern "C" {

terrace_code terrace_kv_format(void* memory, uint64_t bytes, const terrace_kv_format_options* options) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_format";
    TERRACE_C_NEED(where, memory);
    TERRACE_ASSIGN_OR_RETURN(const KvFormatOptions wanted, kv_format_options(options, where));
    return KvSpace::format({static_cast<std::byte*>(memory), bytes}, wanted);
  });
}

terrace_code terrace_kv_format_fd(int fd, const terrace_kv_format_options* options) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_format_fd";
    TERRACE_ASSIGN_OR_RETURN(const KvFormatOptions wanted, kv_format_options(options, where));
    TERRACE_ASSIGN_OR_RETURN(const auto file, KvFile::map(fd, where));
    return KvSpace::format(file->bytes(), wanted);
  });
}

terrace_code terrace_kv_attach(void* memory, uint64_t bytes, const terrace_kv_attach_options* options,
                               terrace_kv** kv) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_attach";
    TERRACE_C_NEED(where, memory);
    TERRACE_C_NEED(where, kv);
    TERRACE_ASSIGN_OR_RETURN(KvAttachOptions wanted, kv_attach_options(options, where));
    TERRACE_ASSIGN_OR_RETURN(auto made,
                             KvSpace::attach({static_cast<std::byte*>(memory), bytes}, std::move(wanted)));
    *kv = new terrace_kv{std::move(made)};
    return {};
  });
}

terrace_code terrace_kv_attach_mapping(terrace_mapping* mapping, const terrace_kv_attach_options* options,
                                       terrace_kv** kv) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_attach_mapping";
    TERRACE_C_NEED(where, mapping);
    TERRACE_C_NEED(where, kv);
    TERRACE_ASSIGN_OR_RETURN(KvAttachOptions wanted, kv_attach_options(options, where));
    const std::span<std::byte> bytes = mapping->mapping->bytes();
    if (bytes.empty())
      return Error{ErrorCode::permission_denied, 0, where,
                   "the lease may only be read; a holder stores into it"};
    TERRACE_ASSIGN_OR_RETURN(auto session, kv_session_of(options, where));
    Lease& lease = *mapping->mapping->lease();
    TERRACE_ASSIGN_OR_RETURN(auto joined,
                             kv_join({.bytes = bytes, .keep = mapping->mapping, .lease_epoch = lease.epoch()},
                                     kv_where_of_lease(lease), std::move(wanted), std::move(session)));
    *kv = joined.release();
    return {};
  });
}

terrace_code terrace_kv_attach_fd(int fd, const terrace_kv_attach_options* options, terrace_kv** kv) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_attach_fd";
    TERRACE_C_NEED(where, kv);
    TERRACE_ASSIGN_OR_RETURN(KvAttachOptions wanted, kv_attach_options(options, where));
    TERRACE_ASSIGN_OR_RETURN(auto file, KvFile::map(fd, where));
    if (wanted.ownership == nullptr) {
      TERRACE_ASSIGN_OR_RETURN(wanted.ownership, ownership_by_locks(fd));
    }
    TERRACE_ASSIGN_OR_RETURN(auto session, kv_session_of(options, where));
    KvMemberMemory first{.bytes = file->bytes(), .keep = file};
    TERRACE_ASSIGN_OR_RETURN(auto joined,
                             kv_join(std::move(first), path_of_fd(fd), std::move(wanted), std::move(session)));
    *kv = joined.release();
    return {};
  });
}

terrace_code terrace_kv_attach_lease(terrace_session* session, const char* lease,
                                     const terrace_kv_attach_options* options, terrace_kv** kv) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_attach_lease";
    TERRACE_C_NEED(where, session);
    TERRACE_C_NEED(where, lease);
    TERRACE_C_NEED(where, kv);
    TERRACE_ASSIGN_OR_RETURN(KvAttachOptions wanted, kv_attach_options(options, where));
    wanted.ownership = nullptr;
    TERRACE_ASSIGN_OR_RETURN(KvMemberMemory first, kv_members_by_session(session->session)(lease));
    TERRACE_ASSIGN_OR_RETURN(auto joined,
                             kv_join(std::move(first), lease, std::move(wanted), session->session));
    *kv = joined.release();
    return {};
  });
}

terrace_code terrace_kv_grow(terrace_kv* kv, const char* member) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_grow";
    TERRACE_C_NEED(where, kv);
    TERRACE_C_NEED(where, member);
    if (kv->joined == nullptr) return kv_alone(where);
    return kv->joined->grow(member);
  });
}

terrace_code terrace_kv_shrink(terrace_kv* kv, const char* member, uint64_t wait_ns,
                               terrace_kv_shrunk* shrunk) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_shrink";
    TERRACE_C_NEED(where, kv);
    TERRACE_C_NEED(where, member);
    if (kv->joined == nullptr) return kv_alone(where);
    TERRACE_ASSIGN_OR_RETURN(const KvShrunk told, kv->joined->shrink(member, wait_ns));
    if (shrunk == nullptr) return {};
    const auto& [moved, moved_bytes, left_behind, holders] = told;
    return give(shrunk,
                {.size = 0,
                 .moved = moved,
                 .moved_bytes = moved_bytes,
                 .left_behind = left_behind,
                 .holders = holders,
                 .reserved = 0},
                where);
  });
}

int terrace_kv_part(const terrace_kv* kv) {
  const auto part = kv == nullptr ? std::nullopt : kv->space->part();
  return part ? static_cast<int>(*part) : -1;
}

terrace_code terrace_kv_health(const terrace_kv* kv) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_kv_health", kv);
    return kv->space->health();
  });
}

void terrace_kv_tend(terrace_kv* kv) {
  if (kv == nullptr) return;
  (void)call([&]() -> Status {
    kv->space->tend();
    return {};
  });
}

void terrace_kv_free(terrace_kv* kv) {
  delete kv;
}

terrace_code terrace_kv_namespace(const char* tenant, const char* model, const char* tokenizer,
                                  const char* layout, const char* dtype, char* into, size_t bytes) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_namespace";
    TERRACE_C_NEED(where, into);
    TERRACE_ASSIGN_OR_RETURN(
        const KvNamespace made,
        KvNamespace::of(text_of(tenant), text_of(model), text_of(tokenizer), text_of(layout), text_of(dtype)));
    const std::string& name = made.name();
    if (name.size() >= bytes)
      return Error{
          ErrorCode::limit_exceeded, 0, where,
          "the namespace needs " + std::to_string(name.size() + 1) + " bytes, not " + std::to_string(bytes)};
    std::memcpy(into, name.c_str(), name.size() + 1);
    return {};
  });
}

terrace_code terrace_kv_erase(terrace_kv* kv, const char* name_space, const void* key, size_t key_bytes,
                              uint64_t wait_ns) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_erase";
    TERRACE_C_NEED(where, kv);
    TERRACE_ASSIGN_OR_RETURN(const KvNamespace of, kv_namespace_of(name_space));
    TERRACE_ASSIGN_OR_RETURN(const std::string_view erased, kv_key_of(key, key_bytes, where));
    return kv->space->erase(of, erased, wait_ns);
  });
}

terrace_code terrace_kv_evict(terrace_kv* kv, uint64_t bytes, uint64_t* erased) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_kv_evict", kv);
    return give_erased(kv->space->evict(bytes), erased);
  });
}

terrace_code terrace_kv_flush(terrace_kv* kv, const char* name_space, uint64_t wait_ns, uint64_t* erased) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_kv_flush", kv);
    TERRACE_ASSIGN_OR_RETURN(const KvNamespace of, kv_namespace_of(name_space));
    return give_erased(kv->space->flush(of, wait_ns), erased);
  });
}

terrace_code terrace_kv_flush_all(terrace_kv* kv, uint64_t wait_ns, uint64_t* erased) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_kv_flush_all", kv);
    return give_erased(kv->space->flush(std::nullopt, wait_ns), erased);
  });
}

}  // extern "C"
