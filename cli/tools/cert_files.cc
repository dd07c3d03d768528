// SPDX-License-Identifier: Apache-2.0
#include "cli/tools/cert_files.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <utility>

#include "core/base/host_names.h"
#include "core/base/unique_fd.h"
#include "core/identity/client_certificate.h"

namespace terrace::cli {
namespace {

constexpr size_t pem_bytes_max = 16 * 1024 * 1024;

Status write_all(int fd, const std::string& path, const std::string& content) {
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t wrote = ::write(fd, content.data() + done, content.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return os_error(wrote < 0 ? errno : EIO, cert_where, "cannot write " + path);
    done += static_cast<size_t>(wrote);
  }
  if (::fsync(fd) != 0) return os_error(errno, cert_where, "cannot write " + path);
  return {};
}

Status sync_directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return os_error(errno, cert_where, "cannot sync " + directory);
  return {};
}

}  // namespace

Error openssl_error(const std::string& what) {
  char text[256] = "";
  const unsigned long code = ERR_get_error();
  if (code != 0) ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return Error{
      .code = ErrorCode::internal, .where = cert_where, .detail = what + (code == 0 ? "" : ": ") + text};
}

Error cert_error(std::string detail) {
  return Error{.code = ErrorCode::invalid_argument, .where = cert_where, .detail = std::move(detail)};
}

// --- files ----------------------------------------------------------------------------------------------

bool path_exists(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

Status write_new_file(const std::string& path, const std::string& content) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid() && errno == EEXIST) {
    return Error{
        .code = ErrorCode::already_exists,
        .where = cert_where,
        .detail = path + " exists; nothing is overwritten. Move it away first, or choose another name"};
  }
  if (!file.valid()) return os_error(errno, cert_where, "cannot make " + path);
  if (Status written = write_all(file.get(), path, content); !written.ok()) {
    ::unlink(path.c_str());
    return written;
  }
  return {};
}

Status replace_file(const std::string& path, const std::string& content) {
  const std::string fresh = path + ".new";
  ::unlink(fresh.c_str());  // of one that was killed; the CA's lock is ours
  TERRACE_RETURN_IF_ERROR(write_new_file(fresh, content));
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    const int why = errno;
    ::unlink(fresh.c_str());
    return os_error(why, cert_where, "cannot replace " + path);
  }
  return sync_directory_of(path);
}

Status append_file(const std::string& path, const std::string& content) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return os_error(errno, cert_where, "cannot open " + path);
  TERRACE_RETURN_IF_ERROR(write_all(file.get(), path, content));
  return sync_directory_of(path);
}

Result<std::string> read_pem_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return os_error(errno, cert_where, "cannot read " + path);
  std::string content;
  char part[64 * 1024];
  for (;;) {
    const ssize_t bytes = ::read(file.get(), part, sizeof(part));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return os_error(errno, cert_where, "cannot read " + path);
    if (bytes == 0) return content;
    content.append(part, static_cast<size_t>(bytes));
    if (content.size() > pem_bytes_max) return cert_error(path + " is larger than any PEM file should be");
  }
}

Result<Ssl<X509>> read_certificate(const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(const std::string pem, read_pem_file(path));
  const Ssl<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Ssl<X509> certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (certificate == nullptr) return cert_error(path + " is no PEM certificate");
  return certificate;
}

Result<Ssl<EVP_PKEY>> read_key(const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(const std::string pem, read_pem_file(path));
  const Ssl<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Ssl<EVP_PKEY> key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (key == nullptr) return cert_error(path + " is no PEM key without a password");
  return key;
}

Ca::Ca(Ca&& other) noexcept
    : directory(std::move(other.directory)),
      certificate(std::move(other.certificate)),
      key(std::move(other.key)),
      lock(std::exchange(other.lock, -1)) {}

Ca::~Ca() {
  if (lock >= 0) ::close(lock);
}

Result<Ca> open_ca(const std::string& directory) {
  Ca ca;
  ca.directory = directory;
  const std::string certificate = directory + "/ca.pem";
  if (!path_exists(certificate)) {
    return Error{.code = ErrorCode::not_found,
                 .where = cert_where,
                 .detail = "there is no CA in " + directory +
                           "; `terrace cert init DIR` makes one, --ca "
                           "DIR says where it is"};
  }
  ca.lock = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (ca.lock < 0 || ::flock(ca.lock, LOCK_EX) != 0)
    return os_error(errno, cert_where, "cannot lock " + directory);
  TERRACE_ASSIGN_OR_RETURN(ca.certificate, read_certificate(certificate));
  TERRACE_ASSIGN_OR_RETURN(ca.key, read_key(directory + "/ca.key"));
  if (X509_check_private_key(ca.certificate.get(), ca.key.get()) != 1)
    return cert_error(directory + "/ca.key does not belong to " + certificate);
  return ca;
}

// --- what a certificate says ----------------------------------------------------------------------------

std::string common_name(const X509& certificate) {
  char text[256] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(&certificate), NID_commonName, text, sizeof(text));
  return text;
}

std::string serial_text(const ASN1_INTEGER& serial) {
  const Ssl<BIGNUM> number(ASN1_INTEGER_to_BN(&serial, nullptr));
  char* hex = number == nullptr ? nullptr : BN_bn2hex(number.get());
  std::string text = hex == nullptr ? "" : hex;
  OPENSSL_free(hex);
  for (char& c : text)
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

std::string cert_moment(const ASN1_TIME& time) {
  std::tm broken{};
  if (ASN1_TIME_to_tm(&time, &broken) != 1) return "?";
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%SZ", &broken);
  return text;
}

int64_t seconds_until(const ASN1_TIME& time) {
  int days = 0, seconds = 0;
  if (ASN1_TIME_diff(&days, &seconds, nullptr, &time) != 1) return 0;
  return days * cert_day_s + seconds;
}

std::vector<std::string> uris_of(const X509& certificate) {
  std::vector<std::string> uris;
  auto* names =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  GENERAL_NAMES_free(names);
  return uris;
}

std::string role_of(const X509& certificate) {
  const std::string name = common_name(certificate);
  if (name.starts_with(manager_certificate_prefix)) return "manager";
  if (name.starts_with(host_certificate_prefix)) return "agent";
  if (name.starts_with(client_certificate_prefix)) return "client";
  return X509_check_ca(const_cast<X509*>(&certificate)) != 0 ? "ca" : "other";
}

std::string plain_name(const X509& certificate) {
  const std::string name = common_name(certificate), role = role_of(certificate);
  return role == "manager" || role == "agent" || role == "client" ? name.substr(name.find(':') + 1) : name;
}

}  // namespace terrace::cli
