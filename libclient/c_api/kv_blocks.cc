// SPDX-License-Identifier: Apache-2.0
// Blocks of a KV space for C: finding, reading by copy and in place, putting.
#include <memory>
#include <utility>

#include "libclient/c_api/call.h"
#include "libclient/c_api/kv.h"

using namespace terrace;
using namespace terrace::c_api;

namespace {

Result<std::span<std::byte>> kv_room(void* into, uint64_t bytes, const char* where) {
  if (bytes > 0) TERRACE_C_NEED(where, into);
  return std::span{static_cast<std::byte*>(into), static_cast<size_t>(bytes)};
}

Result<std::span<const std::byte>> kv_data(const void* data, uint64_t bytes, const char* where) {
  if (bytes > 0) TERRACE_C_NEED(where, data);
  return std::span{static_cast<const std::byte*>(data), static_cast<size_t>(bytes)};
}

Result<KvPutOptions> kv_put_options(const terrace_kv_put_options* options, const char* where) {
  TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
  KvPutOptions wanted;
  if (given.parent != nullptr) wanted.parent = {static_cast<const char*>(given.parent), given.parent_bytes};
  if (given.parent == nullptr && given.parent_bytes != 0) return invalid(where, "parent is NULL");
  wanted.ttl_s = given.ttl_s;
  if (given.never_wait != 0) {
    wanted.wait_ns = 0;
  } else if (given.wait_ns != 0) {
    wanted.wait_ns = given.wait_ns;
  }
  if (given.checksum < 0 || given.checksum > TERRACE_CHECKSUMS_OFF)
    return invalid(where, std::to_string(given.checksum) + " is none of TERRACE_CHECKSUMS_...");
  if (given.checksum != TERRACE_CHECKSUMS_BY_COHERENCE)
    wanted.checksum = given.checksum == TERRACE_CHECKSUMS_ON;
  return wanted;
}

// One text, not one for each: that a block is not there is no news.
terrace_code kv_code_of(const Error& error, const Error*& last_failed) {
  last_failed = &error;
  return static_cast<terrace_code>(error.code);
}

}  // namespace

extern "C" {

terrace_code terrace_kv_exists(terrace_kv* kv, const char* name_space, const terrace_kv_key* keys, size_t count,
                               unsigned char* found) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_exists";
    TERRACE_C_NEED(where, kv);
    if (count > 0) TERRACE_C_NEED(where, found);
    TERRACE_ASSIGN_OR_RETURN(const KvNamespace of, kv_namespace_of(name_space));
    TERRACE_ASSIGN_OR_RETURN(const auto asked, kv_keys_of(keys, count, where));
    const auto there = std::make_unique<bool[]>(count);
    TERRACE_RETURN_IF_ERROR(kv->space->exists(of, asked, {there.get(), count}));
    for (size_t i = 0; i < count; ++i) found[i] = there[i] ? 1 : 0;
    return {};
  });
}

terrace_code terrace_kv_prefix(terrace_kv* kv, const char* name_space, const terrace_kv_key* keys, size_t count,
                               uint64_t* there) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_prefix";
    TERRACE_C_NEED(where, kv);
    TERRACE_C_NEED(where, there);
    TERRACE_ASSIGN_OR_RETURN(const KvNamespace of, kv_namespace_of(name_space));
    TERRACE_ASSIGN_OR_RETURN(const auto asked, kv_keys_of(keys, count, where));
    TERRACE_ASSIGN_OR_RETURN(*there, kv->space->prefix(of, asked));
    return {};
  });
}

terrace_code terrace_kv_length(terrace_kv* kv, const char* name_space, const void* key, size_t key_bytes,
                               uint64_t* bytes) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_length";
    TERRACE_C_NEED(where, kv);
    TERRACE_C_NEED(where, bytes);
    TERRACE_ASSIGN_OR_RETURN(const KvNamespace of, kv_namespace_of(name_space));
    TERRACE_ASSIGN_OR_RETURN(const std::string_view asked, kv_key_of(key, key_bytes, where));
    TERRACE_ASSIGN_OR_RETURN(*bytes, kv->space->length(of, asked));
    return {};
  });
}

terrace_code terrace_kv_get(terrace_kv* kv, const char* name_space, const void* key, size_t key_bytes,
                            void* into, uint64_t into_bytes, uint64_t* bytes) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_get";
    TERRACE_C_NEED(where, kv);
    TERRACE_ASSIGN_OR_RETURN(const KvNamespace of, kv_namespace_of(name_space));
    KvGet get;
    TERRACE_ASSIGN_OR_RETURN(get.key, kv_key_of(key, key_bytes, where));
    TERRACE_ASSIGN_OR_RETURN(get.into, kv_room(into, into_bytes, where));
    TERRACE_ASSIGN_OR_RETURN(const uint64_t length, kv->space->get(of, get));
    if (bytes != nullptr) *bytes = length;
    return {};
  });
}

terrace_code terrace_kv_get_many(terrace_kv* kv, const char* name_space, terrace_kv_get_one* gets,
                                 size_t count) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_get_many";
    TERRACE_C_NEED(where, kv);
    if (count > 0) TERRACE_C_NEED(where, gets);
    TERRACE_ASSIGN_OR_RETURN(const KvNamespace of, kv_namespace_of(name_space));
    std::vector<KvGet> asked(count);
    for (size_t i = 0; i < count; ++i) {
      TERRACE_ASSIGN_OR_RETURN(asked[i].key, kv_key_of(gets[i].key.data, gets[i].key.bytes, where));
      TERRACE_ASSIGN_OR_RETURN(asked[i].into, kv_room(gets[i].into, gets[i].into_bytes, where));
    }
    const std::vector<Result<uint64_t>> got = kv->space->get_many(of, asked);
    const Error* last_failed = nullptr;
    for (size_t i = 0; i < count; ++i) {
      gets[i].bytes = got[i].ok() ? *got[i] : 0;
      gets[i].code = got[i].ok() ? TERRACE_OK : kv_code_of(got[i].error(), last_failed);
    }
    if (last_failed != nullptr) (void)fail(*last_failed);
    return {};
  });
}

terrace_code terrace_kv_get_view(terrace_kv* kv, const char* name_space, const void* key, size_t key_bytes,
                                 terrace_kv_view** view) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_get_view";
    TERRACE_C_NEED(where, kv);
    TERRACE_C_NEED(where, view);
    TERRACE_ASSIGN_OR_RETURN(const KvNamespace of, kv_namespace_of(name_space));
    TERRACE_ASSIGN_OR_RETURN(const std::string_view asked, kv_key_of(key, key_bytes, where));
    TERRACE_ASSIGN_OR_RETURN(KvView taken, kv->space->view(of, asked));
    *view = new terrace_kv_view{kv->space, std::move(taken)};
    return {};
  });
}

const void* terrace_kv_view_data(const terrace_kv_view* view) {
  return view == nullptr ? nullptr : view->view.bytes().data();
}

uint64_t terrace_kv_view_bytes(const terrace_kv_view* view) {
  return view == nullptr ? 0 : view->view.bytes().size();
}

void terrace_kv_view_free(terrace_kv_view* view) {
  delete view;
}

terrace_code terrace_kv_put(terrace_kv* kv, const char* name_space, const void* key, size_t key_bytes,
                            const void* data, uint64_t bytes, const terrace_kv_put_options* options) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_put";
    TERRACE_C_NEED(where, kv);
    TERRACE_ASSIGN_OR_RETURN(const KvNamespace of, kv_namespace_of(name_space));
    KvPut put;
    TERRACE_ASSIGN_OR_RETURN(put.key, kv_key_of(key, key_bytes, where));
    TERRACE_ASSIGN_OR_RETURN(put.bytes, kv_data(data, bytes, where));
    TERRACE_ASSIGN_OR_RETURN(put.options, kv_put_options(options, where));
    return kv->space->put(of, put);
  });
}

terrace_code terrace_kv_put_many(terrace_kv* kv, const char* name_space, terrace_kv_put_one* puts,
                                 size_t count) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_put_many";
    TERRACE_C_NEED(where, kv);
    if (count > 0) TERRACE_C_NEED(where, puts);
    TERRACE_ASSIGN_OR_RETURN(const KvNamespace of, kv_namespace_of(name_space));
    std::vector<KvPut> asked(count);
    for (size_t i = 0; i < count; ++i) {
      TERRACE_ASSIGN_OR_RETURN(asked[i].key, kv_key_of(puts[i].key.data, puts[i].key.bytes, where));
      TERRACE_ASSIGN_OR_RETURN(asked[i].bytes, kv_data(puts[i].data, puts[i].bytes, where));
      TERRACE_ASSIGN_OR_RETURN(asked[i].options, kv_put_options(puts[i].options, where));
    }
    const std::vector<Status> done = kv->space->put_many(of, asked);
    const Error* last_failed = nullptr;
    for (size_t i = 0; i < count; ++i)
      puts[i].code = done[i].ok() ? TERRACE_OK : kv_code_of(done[i].error(), last_failed);
    if (last_failed != nullptr) (void)fail(*last_failed);
    return {};
  });
}

terrace_code terrace_kv_begin_put(terrace_kv* kv, const char* name_space, const void* key, size_t key_bytes,
                                  uint64_t bytes, const terrace_kv_put_options* options,
                                  terrace_kv_write** write) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_begin_put";
    TERRACE_C_NEED(where, kv);
    TERRACE_C_NEED(where, write);
    TERRACE_ASSIGN_OR_RETURN(const KvNamespace of, kv_namespace_of(name_space));
    TERRACE_ASSIGN_OR_RETURN(const std::string_view put, kv_key_of(key, key_bytes, where));
    TERRACE_ASSIGN_OR_RETURN(const KvPutOptions wanted, kv_put_options(options, where));
    TERRACE_ASSIGN_OR_RETURN(KvWrite begun, kv->space->begin_put(of, put, bytes, wanted));
    *write = new terrace_kv_write{kv->space, std::move(begun), bytes};
    return {};
  });
}

void* terrace_kv_write_data(terrace_kv_write* write) {
  return write == nullptr || !write->write ? nullptr : write->write->bytes().data();
}

uint64_t terrace_kv_write_bytes(const terrace_kv_write* write) {
  return write == nullptr ? 0 : write->bytes;
}

terrace_code terrace_kv_write_fill(terrace_kv_write* write, const void* data, uint64_t bytes) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_write_fill";
    TERRACE_C_NEED(where, write);
    if (!write->write) return invalid(where, "it was published already");
    TERRACE_ASSIGN_OR_RETURN(const auto from, kv_data(data, bytes, where));
    return write->write->fill(from);
  });
}

terrace_code terrace_kv_write_publish(terrace_kv_write* write) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_write_publish";
    TERRACE_C_NEED(where, write);
    if (!write->write) return invalid(where, "it was published already");
    Status published = write->write->publish();
    write->write.reset();
    return published;
  });
}

void terrace_kv_write_free(terrace_kv_write* write) {
  delete write;
}

}  // extern "C"
