// SPDX-License-Identifier: Apache-2.0
// Directories of checkpoints for C: lists, restores, files in and out.
#include <cstdio>
#include <utility>
#include <vector>

#include "libclient/c_api/call.h"
#include "libclient/c_api/handles.h"
#include "libclient/c_api/transfer.h"

using namespace terrace;
using namespace terrace::c_api;

namespace {

// What is pointed to is `of`'s.
struct terrace_checkpoint_info in_c(const CheckpointInfo& of) {
  struct terrace_checkpoint_info told {};
  told.size = sizeof told;
  told.tensors = of.tensors;
  told.tensor_bytes = of.tensor_bytes;
  told.file_bytes = of.file_bytes;
  told.created_unix_ns = of.created_unix_ns;
  std::snprintf(told.name, sizeof told.name, "%s", of.name.c_str());
  told.file = of.file.c_str();
  return told;
}

// What this thread was last told points to these.
CheckpointInfo& last_found() {
  thread_local CheckpointInfo found;
  return found;
}

std::vector<terrace_file_part>& last_damaged() {
  thread_local std::vector<terrace_file_part> damaged;
  return damaged;
}

Result<PoolImportOptions> restore_options(const terrace_restore_options* options, const char* where) {
  TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
  if (given.reserved != 0)
    return Error{ErrorCode::version_mismatch, 0, where, "reserved is not 0: built for a newer libterrace"};
  PoolImportOptions wanted;
  TERRACE_ASSIGN_OR_RETURN(wanted.tensors, strings_of(given.names, given.name_count, "names", where));
  wanted.into_existing = given.into_existing != 0;
  if (given.set_hint != 0) {
    TERRACE_ASSIGN_OR_RETURN(wanted.hint, hint_of(given.hint, where));
  }
  if (given.set_flags != 0) {
    if (given.flags > TensorFlags::all)
      return invalid(where, std::to_string(given.flags) + " has flags that are none (TERRACE_FLAG_...)");
    wanted.flags = static_cast<uint8_t>(given.flags);
  }
  TERRACE_RETURN_IF_ERROR(add_transfer(given.transfer, wanted, where));
  return wanted;
}

struct terrace_checkpoint_verification in_c(const CheckpointVerification& of) {
  struct terrace_checkpoint_verification told {};
  told.bytes = of.bytes;
  std::vector<terrace_file_part> all;
  for (const auto& part : of.damaged) {
    told.damaged_bytes += part.end - part.begin;
    all.push_back({part.begin, part.end});
  }
  last_damaged() = std::move(all);
  told.damaged = last_damaged().data();
  told.damaged_count = last_damaged().size();
  if (!of.damaged.empty()) {
    told.first_damaged_begin = of.damaged.front().begin;
    told.first_damaged_end = of.damaged.front().end;
  }
  return told;
}

}  // namespace

namespace terrace::c_api {

Status add_transfer(const terrace_transfer* transfer, TransferOptions& options, const char* where) {
  TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(transfer, where));
  if (given.progress != nullptr)
    options.progress = [given](uint64_t done, uint64_t total) { given.progress(given.context, done, total); };
  if (given.cancelled != nullptr) options.cancelled = [given] { return given.cancelled(given.context) != 0; };
  return {};
}

Result<std::vector<std::string>> strings_of(const char* const* given, size_t count, const char* what,
                                            const char* where) {
  if (count > 0 && given == nullptr) return invalid(where, std::string(what) + " is NULL");
  std::vector<std::string> strings;
  for (size_t i = 0; i < count; ++i) {
    if (given[i] == nullptr)
      return invalid(where, std::string(what) + ": entry " + std::to_string(i) + " is NULL");
    strings.emplace_back(given[i]);
  }
  return strings;
}

}  // namespace terrace::c_api

extern "C" {

terrace_code terrace_checkpoints_open(const char* path, int existing_only, terrace_checkpoints** directory) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_checkpoints_open";
    TERRACE_C_NEED(where, path);
    TERRACE_C_NEED(where, directory);
    TERRACE_ASSIGN_OR_RETURN(auto opened, CheckpointDirectory::open(path, existing_only == 0));
    *directory = new terrace_checkpoints{std::move(opened)};
    return {};
  });
}

void terrace_checkpoints_free(terrace_checkpoints* directory) {
  delete directory;
}

terrace_code terrace_checkpoints_list(terrace_checkpoints* directory,
                                      int (*each)(void* context, const struct terrace_checkpoint_info* info,
                                                  const char* damage),
                                      void* context, struct terrace_checkpoint_leftovers* leftovers) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_checkpoints_list";
    TERRACE_C_NEED(where, directory);
    TERRACE_C_NEED(where, each);
    TERRACE_ASSIGN_OR_RETURN(const CheckpointList list, directory->directory->list());
    if (leftovers != nullptr) {
      struct terrace_checkpoint_leftovers told {};
      told.half_written = list.half_written;
      told.being_written = list.being_written;
      TERRACE_RETURN_IF_ERROR(give(leftovers, told, where));
    }
    for (const CheckpointInfo& info : list.checkpoints) {
      const auto told = in_c(info);
      if (each(context, &told, nullptr) != 0) return {};
    }
    for (const auto& damaged : list.damaged) {
      CheckpointInfo name_alone;
      name_alone.name = damaged.name;
      const auto told = in_c(name_alone);
      if (each(context, &told, damaged.error.to_string().c_str()) != 0) return {};
    }
    return {};
  });
}

terrace_code terrace_checkpoints_find(const terrace_checkpoints* directory, const char* name,
                                      struct terrace_checkpoint_info* info) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_checkpoints_find";
    TERRACE_C_NEED(where, directory);
    TERRACE_C_NEED(where, name);
    TERRACE_C_NEED(where, info);
    TERRACE_ASSIGN_OR_RETURN(CheckpointInfo found, directory->directory->find(name));
    last_found() = std::move(found);
    return give(info, in_c(last_found()), where);
  });
}

terrace_code terrace_checkpoints_verify(const terrace_checkpoints* directory, const char* name,
                                        const struct terrace_transfer* transfer,
                                        struct terrace_checkpoint_verification* verification) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_checkpoints_verify";
    TERRACE_C_NEED(where, directory);
    TERRACE_C_NEED(where, name);
    TERRACE_C_NEED(where, verification);
    TransferOptions options;
    TERRACE_RETURN_IF_ERROR(add_transfer(transfer, options, where));
    TERRACE_ASSIGN_OR_RETURN(const CheckpointVerification verified,
                             directory->directory->verify(name, options));
    return give(verification, in_c(verified), where);
  });
}

terrace_code terrace_checkpoints_restore(const terrace_checkpoints* directory, const char* name,
                                         terrace_pool* pool, const struct terrace_restore_options* options,
                                         terrace_tensors** tensors) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_checkpoints_restore";
    TERRACE_C_NEED(where, directory);
    TERRACE_C_NEED(where, name);
    TERRACE_C_NEED(where, pool);
    TERRACE_C_NEED(where, tensors);
    TERRACE_ASSIGN_OR_RETURN(const PoolImportOptions wanted, restore_options(options, where));
    TERRACE_ASSIGN_OR_RETURN(PoolImport back, directory->directory->restore(name, *pool->pool, wanted));
    *tensors = new terrace_tensors{std::move(back.tensors), std::move(back.metadata)};
    return {};
  });
}

terrace_code terrace_checkpoints_import(terrace_checkpoints* directory, const char* file, const char* name,
                                        const struct terrace_transfer* transfer) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_checkpoints_import";
    TERRACE_C_NEED(where, directory);
    TERRACE_C_NEED(where, file);
    TERRACE_C_NEED(where, name);
    TransferOptions options;
    TERRACE_RETURN_IF_ERROR(add_transfer(transfer, options, where));
    const auto made = directory->directory->import_file(file, name, options);
    return made.ok() ? Status() : Status(made.error());
  });
}

terrace_code terrace_checkpoints_export(const terrace_checkpoints* directory, const char* name,
                                        const char* file, const struct terrace_export_options* options) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_checkpoints_export";
    TERRACE_C_NEED(where, directory);
    TERRACE_C_NEED(where, name);
    TERRACE_C_NEED(where, file);
    TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
    if (given.reserved != 0)
      return Error{ErrorCode::version_mismatch, 0, where, "reserved is not 0: built for a newer libterrace"};
    CheckpointExportOptions wanted;
    TERRACE_ASSIGN_OR_RETURN(wanted.tensors, strings_of(given.names, given.name_count, "names", where));
    TERRACE_RETURN_IF_ERROR(add_transfer(given.transfer, wanted, where));
    const auto made = directory->directory->export_file(name, file, given.replace != 0, wanted);
    return made.ok() ? Status() : Status(made.error());
  });
}

terrace_code terrace_checkpoints_remove(terrace_checkpoints* directory, const char* name) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_checkpoints_remove";
    TERRACE_C_NEED(where, directory);
    TERRACE_C_NEED(where, name);
    return directory->directory->remove(name);
  });
}

}  // extern "C"
