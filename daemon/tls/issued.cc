// SPDX-License-Identifier: Apache-2.0
#include "daemon/tls/issued.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/unique_fd.h"
#include "core/identity/pem_blocks.h"
#include "daemon/log/log.h"
#include "daemon/tls/x509.h"

namespace terrace::daemon {
namespace {

// `terrace cert list` shows what ended for so long.
constexpr int64_t ended_kept_s = 30 * certificate_day_s;
// It is looked through again when it has become twice as long, and not for less than this.
constexpr uint64_t looked_through_bytes_min = 256 * 1024;

std::string pem_of(X509& certificate) {
  const Ssl<BIO> bio(BIO_new(BIO_s_mem()));
  char* data = nullptr;
  if (bio == nullptr || PEM_write_bio_X509(bio.get(), &certificate) != 1) return "";
  const long bytes = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(bytes));
}

// The directory, locked as `terrace cert` does it. None: somebody has it.
Result<UniqueFd> lock_directory(const std::string& directory) {
  const std::string path = directory.empty() ? "." : directory;
  UniqueFd lock(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.valid() && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (lock.valid() && errno == EWOULDBLOCK)
    return Error{.code = ErrorCode::busy,
                 .where = "renewCertificate",
                 .detail = "the CA's directory " + path + " is in use by `terrace cert`; try again"};
  return os_error(errno, "renewCertificate", "cannot lock the CA's directory " + path);
}

}  // namespace

IssuedFile::IssuedFile(const std::string& directory, int64_t now_s)
    : directory_(directory), path_(directory + "issued.pem") {
  const auto lock = lock_directory(directory_);
  look_through(now_s, lock.ok());
}

void IssuedFile::know(CertificateFacts facts, std::string pem, int64_t now_s) {
  if (facts.ends_s <= now_s || facts.holder.empty()) return;
  Entry& known = newest_[facts.holder];
  if (facts.ends_s >= known.facts.ends_s) known = {std::move(facts), std::move(pem)};
}

const IssuedFile::Entry* IssuedFile::newest_of(const CertificateFacts& one) const {
  const auto at = newest_.find(one.holder);
  return at != newest_.end() && at->second.facts.ends_s > one.ends_s ? &at->second : nullptr;
}

void IssuedFile::look_through(int64_t now_s, bool locked) {
  newest_.clear();
  look_at_bytes_ = looked_through_bytes_min;
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0 && errno == ENOENT) return;
  const Ssl<BIO> file(BIO_new_file(path_.c_str(), "r"));
  ERR_clear_error();
  if (file == nullptr) {
    log::warn("{} cannot be read: what was renewed before is not known, and may be made again", path_);
    return;
  }
  std::string text;
  char part[16 * 1024];
  for (int bytes = 0; (bytes = BIO_read(file.get(), part, sizeof(part))) > 0;)
    text.append(part, static_cast<size_t>(bytes));
  std::string kept;
  size_t dropped = 0;
  bool whole = true;
  for (const std::string_view block : pem_blocks(text)) {
    const Ssl<BIO> bio(BIO_new_mem_buf(block.data(), static_cast<int>(block.size())));
    const Ssl<X509> one(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (one == nullptr) {
      ERR_clear_error();
      whole = false;  // torn: it is kept as it is, and so is all of the file
      continue;
    }
    CertificateFacts facts = facts_of(*one);
    if (now_s - facts.ends_s > ended_kept_s) {
      ++dropped;
      continue;
    }
    std::string pem = pem_of(*one);
    kept += pem;
    know(std::move(facts), std::move(pem), now_s);
  }
  bytes_ = static_cast<uint64_t>(status.st_size);
  // Whose file it is, it stays: others would not be able to read what takes its place.
  if (dropped != 0 && whole && locked && status.st_uid == ::geteuid()) {
    const Status replaced = replace_credential(path_, kept);
    if (replaced.ok()) {
      bytes_ = kept.size();
      log::info("{} certificates that ended more than 30 days ago were dropped from {}", dropped, path_);
    } else {
      log::warn("{}", replaced.error().to_string());
    }
  }
  look_at_bytes_ = std::max(looked_through_bytes_min, 2 * bytes_);
}

Status IssuedFile::note(const std::string& pem, int64_t now_s) {
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd lock, lock_directory(directory_));
  TERRACE_ASSIGN_OR_RETURN(CertificateFacts facts, parse_facts(pem));
  const UniqueFd file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid() || ::write(file.get(), pem.data(), pem.size()) != static_cast<ssize_t>(pem.size()) ||
      ::fsync(file.get()) != 0)
    return os_error(errno, "renewCertificate", "cannot note a renewed certificate in " + path_);
  know(std::move(facts), pem, now_s);
  bytes_ += pem.size();
  if (bytes_ > look_at_bytes_) look_through(now_s, true);
  return {};
}

}  // namespace terrace::daemon
