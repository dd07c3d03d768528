// SPDX-License-Identifier: Apache-2.0
#include "cli/kv/kv_place.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "core/base/units.h"

namespace terrace::cli {
namespace {

Error kv_place_error(ErrorCode code, const char* verb, std::string detail) {
  return Error{.code = code, .where = verb, .detail = std::move(detail)};
}

// What to do about an error of attach(), behind its text.
std::string kv_attach_advice(const KvPlace& place, ErrorCode code) {
  switch (code) {
    case ErrorCode::not_found: return "; 'terrace kv format " + place.where() + "' makes one";
    case ErrorCode::corrupt:
    case ErrorCode::version_mismatch:
      return "; 'terrace kv format " + place.where() + " --force' makes an empty one of it";
    default: return "";
  }
}

}  // namespace

Result<KvPlace> KvPlace::open(const Context& context, const std::string& where, const char* verb) {
  KvPlace place(context, where, verb);
  TERRACE_RETURN_IF_ERROR(where.find('/') == std::string::npos ? place.open_lease(context, verb)
                                                               : place.open_path(verb));
  return place;
}

Result<KvPlace> KvPlace::create(const Context& context, const std::string& path, uint64_t bytes,
                                const char* verb) {
  KvPlace place(context, path, verb);
  place.file_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!place.file_.valid()) return os_error(errno, verb, "cannot create " + path);
  // All of it now: a file system that is full later on is a SIGBUS.
  const int code = ::posix_fallocate(place.file_.get(), 0, static_cast<off_t>(bytes));
  Status mapped = code == 0 ? place.map_file(verb)
                            : os_error(code, verb, "cannot make " + path + " " + format_size(bytes) + " long");
  if (mapped.ok()) return place;
  ::unlink(path.c_str());
  return std::move(mapped).error();
}

Status KvPlace::open_lease(const Context& context, const char* verb) {
  HoldArguments arguments;
  arguments.lease = where_;
  Result<std::unique_ptr<HeldLease>> held = HeldLease::take(context, arguments, verb);
  if (!held.ok()) {
    Error error = std::move(held).error();
    if (::access(where_.c_str(), F_OK) == 0) error.detail += "; for the file of that name write ./" + where_;
    return error;
  }
  held_ = std::move(held).value();
  const std::shared_ptr<Lease> lease(held_, &held_->lease());
  shown_ = shown_lease(lease->id(), held_->label());
  called_ = held_->label().empty() ? std::to_string(lease->id().value) : held_->label();
  TERRACE_ASSIGN_OR_RETURN(const LeaseInfo info, lease->info());
  if (info.mode != LeaseMode::shared_coherent)
    return kv_place_error(ErrorCode::invalid_argument, verb,
                          shown_ +
                              " is not of the mode shared_coherent: only such a lease's memory has several "
                              "holders; 'terrace lease grant --mode shared_coherent' grants one");
  TERRACE_ASSIGN_OR_RETURN(mapping_, Mapping::map(lease));
  memory_ = mapping_->bytes();
  lease_epoch_ = lease->epoch();
  TERRACE_ASSIGN_OR_RETURN(ownership_, ownership_by_manager(lease));
  return {};
}

Status KvPlace::open_path(const char* verb) {
  Result<UniqueFd> opened = open_kv_memory(where_);
  if (!opened.ok()) {
    Error error = std::move(opened).error();
    error.where = verb;
    if (error.code == ErrorCode::not_found)
      error.detail += "; 'terrace kv format " + where_ + " --bytes SIZE' makes it";
    return error;
  }
  file_ = std::move(opened).value();
  return map_file(verb);
}

Status KvPlace::map_file(const char* verb) {
  shown_ = where_;
  called_ = std::filesystem::absolute(where_).lexically_normal().string();
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) return os_error(errno, verb, "cannot look at " + where_);
  if (S_ISREG(status.st_mode) && status.st_size == 0)
    return kv_place_error(ErrorCode::invalid_argument, verb,
                          where_ + " is empty: an empty file has no memory, nor has a lease's that is fenced");
  Result<os::FileMap> map = os::FileMap::map(file_.get());
  if (!map.ok()) return kv_error_at(*this, std::move(map).error());
  file_map_.emplace(std::move(map).value());
  memory_ = file_map_->bytes();
  TERRACE_ASSIGN_OR_RETURN(ownership_, ownership_by_locks(file_.get()));
  return {};
}

Error kv_error_at(const KvPlace& place, Error error) {
  error.detail = place.shown() + ": " + error.detail;
  return error;
}

Result<std::shared_ptr<KvSpill>> open_kv_spill(const std::string& text, bool puts) {
  if (text.empty()) return std::shared_ptr<KvSpill>();
  KvSpillOptions options{.puts = puts};
  std::string folder = text;
  if (const size_t colon = text.rfind(':'); colon != std::string::npos) {
    TERRACE_ASSIGN_OR_RETURN(options.bytes, parse_size(text.substr(colon + 1)));
    folder.resize(colon);
  }
  return KvSpill::open(folder, options);
}

Result<std::shared_ptr<KvLocal>> open_kv_local(const std::string& text) {
  if (text.empty()) return std::shared_ptr<KvLocal>();
  TERRACE_ASSIGN_OR_RETURN(const uint64_t bytes, parse_size(text));
  return KvLocal::open({.bytes = bytes});
}

KvOpenMember KvPlace::opener() const {
  return [context = context_, verb = verb_](const std::string& where) -> Result<KvMemberMemory> {
    TERRACE_ASSIGN_OR_RETURN(KvPlace opened, KvPlace::open(*context, where, verb));
    const auto kept = std::make_shared<const KvPlace>(std::move(opened));
    return KvMemberMemory{.bytes = kept->memory(),
                          .ownership = kept->ownership(),
                          .keep = kept,
                          .lease_epoch = kept->lease_epoch()};
  };
}

Result<std::unique_ptr<KvSpace>> attach_kv_member(const KvPlace& place) {
  auto space =
      KvSpace::attach(place.memory(), {.ownership = place.ownership(), .puts = false, .tends_itself = false});
  if (space.ok()) return space;
  Error error = kv_error_at(place, std::move(space).error());
  error.detail += kv_attach_advice(place, error.code);
  return error;
}

Result<std::unique_ptr<JoinedKvSpace>> attach_kv(const KvPlace& place, KvUse use,
                                                 std::shared_ptr<KvSpill> spill,
                                                 std::shared_ptr<KvLocal> local) {
  KvAttachOptions options;
  options.puts = use == KvUse::writes || use == KvUse::serves;
  options.tends_itself = use == KvUse::serves || use == KvUse::serves_reads;
  options.spill = std::move(spill);
  options.local = std::move(local);
  auto space = JoinedKvSpace::attach(
      {.bytes = place.memory(), .ownership = place.ownership(), .lease_epoch = place.lease_epoch()},
      place.called(), {.attach = std::move(options), .open = place.opener()});
  if (space.ok()) return space;
  Error error = kv_error_at(place, std::move(space).error());
  error.detail += kv_attach_advice(place, error.code);
  return error;
}

}  // namespace terrace::cli
