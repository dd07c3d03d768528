// SPDX-License-Identifier: Apache-2.0
#include "daemon/tls/certificate.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "core/base/unique_fd.h"
#include "daemon/tls/x509.h"

namespace terrace::daemon {
namespace {

constexpr size_t credential_bytes_max = 8 * 1024 * 1024;  // a list of a hundred thousand revoked ones

std::string der_of(X509& certificate) {
  unsigned char* bytes = nullptr;
  const int length = i2d_X509(&certificate, &bytes);
  std::string der(reinterpret_cast<const char*>(bytes), static_cast<size_t>(std::max(length, 0)));
  OPENSSL_free(bytes);
  return der;
}

// Alternative names of one kind (GEN_URI, GEN_DNS). Those with a byte that none has are left out: as text they would be
// others.
std::vector<std::string> alternative_names(const X509& certificate, int kind) {
  std::vector<std::string> found;
  auto* names =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type != kind) continue;
    const ASN1_IA5STRING* said = name->d.ia5;
    std::string text(reinterpret_cast<const char*>(ASN1_STRING_get0_data(said)),
                     static_cast<size_t>(ASN1_STRING_length(said)));
    const bool plain = std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
    if (plain) found.push_back(std::move(text));
  }
  GENERAL_NAMES_free(names);
  return found;
}

std::vector<std::string> dns_names_of(const X509& certificate) {
  std::vector<std::string> names = alternative_names(certificate, GEN_DNS);
  for (std::string& name : names)
    for (char& c : name)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return names;
}

Ssl<X509> of_der(const std::string& der) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(der.data());
  return Ssl<X509>(d2i_X509(nullptr, &bytes, static_cast<long>(der.size())));
}

Error cannot_issue(const std::string& why) {
  return Error{
      .code = ErrorCode::internal, .where = "tls", .detail = "a certificate cannot be renewed: " + why};
}

// Another serial and another life.
bool begin_again(X509& certificate, int64_t life_s) {
  unsigned char random[16];
  if (RAND_bytes(random, sizeof(random)) != 1) return false;
  random[0] &= 0x7f;
  const Ssl<BIGNUM> serial(BN_bin2bn(random, sizeof(random), nullptr));
  // A few minutes back: clocks of hosts differ.
  return serial != nullptr &&
         BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(&certificate)) != nullptr &&
         X509_gmtime_adj(X509_getm_notBefore(&certificate), -300) != nullptr &&
         X509_gmtime_adj(X509_getm_notAfter(&certificate), static_cast<long>(life_s)) != nullptr;
}

}  // namespace

std::string serial_text(const ASN1_INTEGER& serial) {
  const Ssl<BIGNUM> number(ASN1_INTEGER_to_BN(&serial, nullptr));
  char* hex = number == nullptr ? nullptr : BN_bn2hex(number.get());
  std::string text = hex == nullptr ? "" : hex;
  OPENSSL_free(hex);
  for (char& c : text)
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

int64_t unix_time(const ASN1_TIME& time) {
  std::tm broken{};
  return ASN1_TIME_to_tm(&time, &broken) == 1 ? static_cast<int64_t>(::timegm(&broken)) : 0;
}

namespace {

// Each part with its length before it. Empty: libcrypto could not say.
std::string holder_of(const X509& certificate, const std::string& name) {
  const int at = X509_get_ext_by_NID(&certificate, NID_subject_alt_name, -1);
  const X509_EXTENSION* extension = at < 0 ? nullptr : X509_get_ext(&certificate, at);
  const ASN1_OCTET_STRING* names =
      extension == nullptr ? nullptr : X509_EXTENSION_get_data(const_cast<X509_EXTENSION*>(extension));
  unsigned char* key = nullptr;
  const int key_bytes = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(&certificate), &key);
  if (key_bytes <= 0) return "";
  std::string text;
  const auto add = [&text](const void* bytes, size_t count) {
    text += std::to_string(count) + ":";
    text.append(static_cast<const char*>(bytes), count);
  };
  add(name.data(), name.size());
  add(key, static_cast<size_t>(key_bytes));
  OPENSSL_free(key);
  if (names != nullptr) add(ASN1_STRING_get0_data(names), static_cast<size_t>(ASN1_STRING_length(names)));
  unsigned char digest[SHA256_DIGEST_LENGTH];
  if (EVP_Digest(text.data(), text.size(), digest, nullptr, EVP_sha256(), nullptr) != 1) return "";
  return std::string(reinterpret_cast<const char*>(digest), sizeof(digest));
}

}  // namespace

std::string shown_moment(int64_t unix_s) {
  const std::time_t at = unix_s;
  std::tm broken{};
  char text[32] = "";
  if (::gmtime_r(&at, &broken) != nullptr) std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%SZ", &broken);
  return text;
}

CertificateFacts facts_of(x509_st& certificate) {
  char name[256] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(&certificate), NID_commonName, name, sizeof(name));
  return {.name = name,
          .serial = serial_text(*X509_get0_serialNumber(&certificate)),
          .begins_s = unix_time(*X509_get0_notBefore(&certificate)),
          .ends_s = unix_time(*X509_get0_notAfter(&certificate)),
          .uris = alternative_names(certificate, GEN_URI),
          .dns_names = dns_names_of(certificate),
          .der = der_of(certificate),
          .holder = holder_of(certificate, name)};
}

Result<Issuer> read_issuer(const std::string& ca, const std::string& key, int64_t days) {
  Issuer issuer;
  TERRACE_ASSIGN_OR_RETURN(issuer.ca_pem, read_credential(ca, "CA certificate", false));
  TERRACE_ASSIGN_OR_RETURN(issuer.key_pem, read_credential(key, "CA's key", true));
  issuer.days = days;
  const Ssl<X509> certificate(PEM_read_bio_X509(pem_reader(issuer.ca_pem).get(), nullptr, nullptr, nullptr));
  const Ssl<EVP_PKEY> private_key(
      PEM_read_bio_PrivateKey(pem_reader(issuer.key_pem).get(), nullptr, nullptr, nullptr));
  const bool fits = certificate != nullptr && private_key != nullptr &&
                    X509_check_private_key(certificate.get(), private_key.get()) == 1;
  ERR_clear_error();
  if (fits) return issuer;
  return Error{
      .code = ErrorCode::invalid_argument,
      .where = "tls",
      .detail = "the key " + key + " does not belong to the CA " + ca + "; it is ca.key in the CA's directory"};
}

Result<std::string> issue_again(const Issuer& issuer, const CertificateFacts& old) {
  const Ssl<X509> ca(PEM_read_bio_X509(pem_reader(issuer.ca_pem).get(), nullptr, nullptr, nullptr));
  const Ssl<EVP_PKEY> key(PEM_read_bio_PrivateKey(pem_reader(issuer.key_pem).get(), nullptr, nullptr, nullptr));
  const Ssl<X509> certificate = of_der(old.der);
  if (ca == nullptr || key == nullptr || certificate == nullptr) return cannot_issue("it cannot be read");
  if (X509_verify(certificate.get(), X509_get0_pubkey(ca.get())) != 1) {
    ERR_clear_error();
    return cannot_issue("it is of another CA");
  }
  const int64_t ca_left_s = unix_time(*X509_get0_notAfter(ca.get())) - static_cast<int64_t>(std::time(nullptr));
  const Ssl<BIO> bio(BIO_new(BIO_s_mem()));
  if (!begin_again(*certificate, std::min(issuer.days * certificate_day_s, ca_left_s)) ||
      X509_sign(certificate.get(), key.get(), EVP_sha256()) == 0 || bio == nullptr ||
      PEM_write_bio_X509(bio.get(), certificate.get()) != 1) {
    ERR_clear_error();
    return cannot_issue("libcrypto refuses");
  }
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(bytes));
}

Result<CertificateFacts> parse_facts(const std::string& pem) {
  const Ssl<X509> certificate(PEM_read_bio_X509(pem_reader(pem).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (certificate == nullptr)
    return Error{.code = ErrorCode::invalid_argument, .where = "tls", .detail = "it is no PEM certificate"};
  return facts_of(*certificate);
}

bool can_replace(const CertificateFacts& fresh, const CertificateFacts& old, const CertificateFacts& ca) {
  const Ssl<X509> one = of_der(fresh.der), other = of_der(old.der), issuer = of_der(ca.der);
  const bool can = one != nullptr && other != nullptr && issuer != nullptr && fresh.name == old.name &&
                   fresh.ends_s > old.ends_s &&
                   EVP_PKEY_eq(X509_get0_pubkey(one.get()), X509_get0_pubkey(other.get())) == 1 &&
                   X509_verify(one.get(), X509_get0_pubkey(issuer.get())) == 1;
  ERR_clear_error();
  return can;
}

Status replace_credential(const std::string& path, const std::string& content) {
  const std::string fresh = path + ".new", directory = path.substr(0, path.rfind('/') + 1);
  ::unlink(fresh.c_str());
  const UniqueFd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  const UniqueFd folder(
      ::open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file.valid() || !folder.valid() ||
      ::write(file.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size()) ||
      ::fsync(file.get()) != 0 || ::rename(fresh.c_str(), path.c_str()) != 0 || ::fsync(folder.get()) != 0)
    return os_error(errno, "tls", "cannot replace " + path);
  return {};
}

Result<std::string> read_credential(const std::string& path, const char* what, bool secret) {
  constexpr const char* at = "tls";
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return os_error(errno, at, std::string("the ") + what + " " + path + " cannot be read");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return os_error(errno, at, "cannot look at " + path);
  if (secret && (status.st_mode & 077) != 0) {
    return Error{.code = ErrorCode::permission_denied,
                 .where = at,
                 .detail = std::string("the ") + what + " " + path +
                           " can be read by others; whoever has it is this machine. chmod 600 it"};
  }
  std::string content;
  char part[16 * 1024];
  for (;;) {
    const ssize_t bytes = ::read(file.get(), part, sizeof(part));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return os_error(errno, at, "cannot read " + path);
    if (bytes == 0) return content;
    content.append(part, static_cast<size_t>(bytes));
    if (content.size() > credential_bytes_max) {
      return Error{.code = ErrorCode::invalid_argument,
                   .where = at,
                   .detail = std::string("the ") + what + " " + path + " is larger than any should be"};
    }
  }
}

}  // namespace terrace::daemon
