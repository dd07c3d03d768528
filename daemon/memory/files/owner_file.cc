// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/files/owner_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

namespace terrace::daemon {
namespace {

constexpr const char* where = "claim";
constexpr const char* file_name = "store-id";
constexpr const char* part_name = "store-id.new";
constexpr const char* magic = "terrace-store-1";
constexpr size_t file_bytes_max = 8192;

std::string repaired(const StoreClaim& claim) {
  return "; or, to destroy that memory and take the directory over, start once with --destroy-orphans. The "
         "start "
         "was given the store " +
         store_id_text(claim.store) + " (" + claim.owner + ")" +
         (claim.is_new ? ", which is new and empty" : "") + "; nothing was touched";
}

Error refused(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = std::move(detail)};
}

Status write_owner(const OwnedDirectory& directory, const StoreClaim& claim) {
  std::string words = claim.owner;
  for (char& c : words)
    if (static_cast<unsigned char>(c) < 0x20) c = '?';
  const std::string text =
      std::string(magic) + "\nid " + store_id_text(claim.store) + "\nof " + words + "\nend\n";
  const auto cannot = [&] {
    return os_error(errno == 0 ? ENOSPC : errno, where, "cannot write " + directory.path + "/" + part_name);
  };
  const UniqueFd file(
      ::openat(directory.fd, part_name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return cannot();
  errno = 0;
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) return cannot();
  if (::fsync(file.get()) != 0) return cannot();
  if (::renameat(directory.fd, part_name, directory.fd, file_name) != 0) return cannot();
  const UniqueFd folder(::openat(directory.fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || ::fsync(folder.get()) != 0) return cannot();
  return {};
}

}  // namespace

bool is_owner_file(std::string_view name) {
  return name == file_name || name == part_name || name == memory_mark_name;
}

void forget_owner(int directory) {
  ::unlinkat(directory, file_name, 0);
  ::unlinkat(directory, part_name, 0);
  ::unlinkat(directory, memory_mark_name, 0);
}

Result<std::optional<Owner>> read_owner(const OwnedDirectory& directory) {
  const std::string path = directory.path + "/" + file_name;
  const UniqueFd file(::openat(directory.fd, file_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) {
    if (errno == ENOENT) return std::optional<Owner>();
    return os_error(errno, where, "cannot open " + path);
  }
  std::string text(file_bytes_max, '\0');
  const ssize_t n = ::read(file.get(), text.data(), text.size());
  if (n < 0) return os_error(errno, where, "cannot read " + path);
  text.resize(static_cast<size_t>(n));
  std::istringstream lines(text);
  std::string first, id, of, end;
  std::getline(lines, first);
  std::getline(lines, id);
  std::getline(lines, of);
  std::getline(lines, end);
  const auto store = id.starts_with("id ") ? parse_store_id(std::string_view(id).substr(3)) : std::nullopt;
  if (first != magic || !store.has_value() || !of.starts_with("of ") || end != "end")
    return Error{.code = ErrorCode::corrupt, .where = where, .detail = path + " cannot be understood"};
  return std::optional(Owner{*store, of.substr(3)});
}

Status claim_directory(const OwnedDirectory& directory, const StoreClaim& claim, size_t objects) {
  const auto owner = read_owner(directory);
  if (!owner.ok() && !claim.take_over) {
    if (owner.error().code != ErrorCode::corrupt) return owner.error();
    return refused(owner.error().detail + ", so that nobody can tell whose the " + std::to_string(objects) +
                   " objects in " + directory.path + " are. If they are this store's, remove that file" +
                   repaired(claim));
  }
  const bool known = owner.ok() && owner->has_value();
  if (known && (*owner)->store == claim.store && (*owner)->words == claim.owner) return {};
  if (known && (*owner)->store != claim.store && !claim.take_over) {
    return refused(directory.path + " belongs to the store " + store_id_text((*owner)->store) + " (" +
                   (*owner)->words + "). Start with the " + claim.remedy +
                   " that names it; is its file system mounted?" + repaired(claim));
  }
  if (!known && claim.is_new && objects != 0 && !claim.take_over) {
    return refused("the " + std::to_string(objects) + " objects in " + directory.path +
                   " belong to another store. Start with the " + claim.remedy +
                   " that names it; is its file system mounted?" + repaired(claim));
  }
  return claim.check_only ? Status() : write_owner(directory, claim);
}

}  // namespace terrace::daemon
