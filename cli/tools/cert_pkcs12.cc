// SPDX-License-Identifier: Apache-2.0
#include "cli/tools/cert_pkcs12.h"

#include <openssl/pkcs12.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include <string_view>

namespace terrace::cli {
namespace {

constexpr int pkcs12_rounds = 100'000;
constexpr size_t password_bytes_max = 256;

struct FreePkcs12 {
  void operator()(PKCS12* one) const { PKCS12_free(one); }
  void operator()(STACK_OF(X509) * one) const { sk_X509_free(one); }  // its certificates are others'
};

}  // namespace

Result<std::string> make_pkcs12(const std::string& name, const std::string& certificate_pem,
                                const std::string& key_pem, X509& ca, const std::string& password) {
  const Ssl<BIO> certificate_bio(
      BIO_new_mem_buf(certificate_pem.data(), static_cast<int>(certificate_pem.size())));
  const Ssl<BIO> key_bio(BIO_new_mem_buf(key_pem.data(), static_cast<int>(key_pem.size())));
  const Ssl<X509> certificate(PEM_read_bio_X509(certificate_bio.get(), nullptr, nullptr, nullptr));
  const Ssl<EVP_PKEY> key(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, nullptr, nullptr));
  const std::unique_ptr<STACK_OF(X509), FreePkcs12> chain(sk_X509_new_null());
  if (certificate == nullptr || key == nullptr || chain == nullptr || sk_X509_push(chain.get(), &ca) == 0)
    return openssl_error("cannot make a file for a browser");
  const std::unique_ptr<PKCS12, FreePkcs12> file(
      PKCS12_create(password.c_str(), name.c_str(), key.get(), certificate.get(), chain.get(), NID_aes_256_cbc,
                    NID_aes_256_cbc, pkcs12_rounds, pkcs12_rounds, 0));
  const Ssl<BIO> out(BIO_new(BIO_s_mem()));
  if (file == nullptr || out == nullptr || i2d_PKCS12_bio(out.get(), file.get()) != 1)
    return openssl_error("cannot make a file for a browser");
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(out.get(), &data);
  return std::string(data, static_cast<size_t>(bytes));
}

Result<std::string> new_password() {
  // 32 of them, none like another one.
  static constexpr std::string_view letters = "abcdefghijkmnpqrstuvwxyz23456789";
  static_assert(letters.size() == 32);
  unsigned char random[20];
  if (RAND_bytes(random, sizeof(random)) != 1) return openssl_error("no random numbers");
  std::string password;
  for (size_t i = 0; i < sizeof(random); ++i) {
    if (i != 0 && i % 5 == 0) password += '-';
    password += letters[random[i] % letters.size()];
  }
  return password;
}

Result<std::string> read_password(const std::string& file) {
  struct stat about {};
  if (::stat(file.c_str(), &about) == 0 && S_ISREG(about.st_mode) && (about.st_mode & 077) != 0) {
    return Error{.code = ErrorCode::permission_denied,
                 .where = cert_where,
                 .detail = "the password in " + file + " can be read by others; chmod 600 it"};
  }
  TERRACE_ASSIGN_OR_RETURN(const std::string content, read_pem_file(file));
  std::string line = content.substr(0, content.find('\n'));
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (line.empty() || line.size() > password_bytes_max || line.find('\0') != std::string::npos) {
    return cert_error("the first line of " + file + " is no password of 1 to " +
                      std::to_string(password_bytes_max) + " characters");
  }
  return line;
}

}  // namespace terrace::cli
