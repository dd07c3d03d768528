// SPDX-License-Identifier: Apache-2.0
// KV spaces for C: the handles, and the common checks of keys and namespaces.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "terrace/kv_c.h"
#include "terrace/kv_members.h"
#include "terrace/kv_space.h"

struct terrace_kv {
  std::shared_ptr<terrace::KvSpace> space;  // with its memory, where it was given a mapping or a file
  std::shared_ptr<terrace::JoinedKvSpace> joined = nullptr;  // the same, unless it is of bare memory
};

struct terrace_kv_view {
  std::shared_ptr<terrace::KvSpace> space;  // goes after the view
  terrace::KvView view;
};

struct terrace_kv_write {
  std::shared_ptr<terrace::KvSpace> space;  // goes after the write
  std::optional<terrace::KvWrite> write;    // none: published
  uint64_t bytes = 0;
};

namespace terrace::c_api {

// Errors    invalid_argument
Result<KvNamespace> kv_namespace_of(const char* name);
Result<std::string_view> kv_key_of(const void* key, size_t key_bytes, const char* where);
Result<std::vector<std::string_view>> kv_keys_of(const terrace_kv_key* keys, size_t count, const char* where);

}  // namespace terrace::c_api
