// SPDX-License-Identifier: Apache-2.0
#include "cli/tools/cert_crl.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <algorithm>

namespace terrace::cli {
namespace {

Status add_entry(X509_CRL& crl, const RevokedOne& one) {
  BIGNUM* read = nullptr;
  const bool parsed = BN_hex2bn(&read, one.serial.c_str()) == static_cast<int>(one.serial.size());
  const Ssl<BIGNUM> number(read);
  const Ssl<ASN1_INTEGER> serial(parsed ? BN_to_ASN1_INTEGER(number.get(), nullptr) : nullptr);
  const Ssl<ASN1_TIME> at(ASN1_TIME_new());
  Ssl<X509_REVOKED> entry(X509_REVOKED_new());
  const bool made = serial != nullptr && at != nullptr && entry != nullptr &&
                    ASN1_TIME_set_string_X509(at.get(), one.at.c_str()) == 1 &&
                    X509_REVOKED_set_serialNumber(entry.get(), serial.get()) == 1 &&
                    X509_REVOKED_set_revocationDate(entry.get(), at.get()) == 1 &&
                    X509_CRL_add0_revoked(&crl, entry.get()) == 1;
  if (!made) return openssl_error("cannot list serial " + one.serial);
  (void)entry.release();  // the list's
  return {};
}

}  // namespace

std::string revoked_list_path(const std::string& directory) {
  return directory + "/revoked.pem";
}

Result<std::optional<RevokedList>> read_list(const Ca& ca) {
  const std::string path = revoked_list_path(ca.directory);
  if (!path_exists(path)) return std::optional<RevokedList>();
  TERRACE_ASSIGN_OR_RETURN(const std::string pem, read_pem_file(path));
  const Ssl<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  const Ssl<X509_CRL> crl(PEM_read_bio_X509_CRL(bio.get(), nullptr, nullptr, nullptr));
  const bool ours = crl != nullptr && X509_CRL_verify(crl.get(), X509_get0_pubkey(ca.certificate.get())) == 1;
  ERR_clear_error();
  if (!ours) {
    return cert_error(
        path +
        " is no list of this CA, and what it revoked would be forgotten. Put back the file that a "
        "manager has; or move it away, and revoke each one again");
  }
  RevokedList list;
  STACK_OF(X509_REVOKED)* stack = X509_CRL_get_REVOKED(crl.get());
  for (int i = 0; i < sk_X509_REVOKED_num(stack); ++i) {
    const X509_REVOKED* one = sk_X509_REVOKED_value(stack, i);
    const Ssl<ASN1_TIME> at(ASN1_TIME_to_generalizedtime(X509_REVOKED_get0_revocationDate(one), nullptr));
    if (at == nullptr) return cert_error(path + " has a date that is none");
    list.entries.push_back({serial_text(*X509_REVOKED_get0_serialNumber(one)),
                            reinterpret_cast<const char*>(ASN1_STRING_get0_data(at.get()))});
  }
  const Ssl<ASN1_INTEGER> number(
      static_cast<ASN1_INTEGER*>(X509_CRL_get_ext_d2i(crl.get(), NID_crl_number, nullptr, nullptr)));
  if (number != nullptr) list.number = std::max<int64_t>(ASN1_INTEGER_get(number.get()), 0);
  if (const ASN1_TIME* until = X509_CRL_get0_nextUpdate(crl.get())) {
    list.seconds_left = seconds_until(*until);
    list.until = cert_moment(*until);
  }
  return std::optional<RevokedList>(std::move(list));
}

Result<std::string> sign_list(const Ca& ca, const RevokedList& list, int64_t days) {
  const Ssl<X509_CRL> crl(X509_CRL_new());
  const Ssl<ASN1_TIME> now(ASN1_TIME_new()), until(ASN1_TIME_new());
  const Ssl<ASN1_INTEGER> number(ASN1_INTEGER_new());
  bool made = crl != nullptr && now != nullptr && until != nullptr && number != nullptr &&
              X509_CRL_set_version(crl.get(), X509_CRL_VERSION_2) == 1 &&
              X509_CRL_set_issuer_name(crl.get(), X509_get_subject_name(ca.certificate.get())) == 1 &&
              X509_gmtime_adj(now.get(), 0) != nullptr &&
              X509_gmtime_adj(until.get(), static_cast<long>(days * cert_day_s)) != nullptr &&
              X509_CRL_set1_lastUpdate(crl.get(), now.get()) == 1 &&
              X509_CRL_set1_nextUpdate(crl.get(), until.get()) == 1 &&
              ASN1_INTEGER_set(number.get(), static_cast<long>(list.number + 1)) == 1 &&
              X509_CRL_add1_ext_i2d(crl.get(), NID_crl_number, number.get(), 0, 0) == 1;
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, ca.certificate.get(), nullptr, nullptr, crl.get(), 0);
  const Ssl<X509_EXTENSION> issuer(
      made ? X509V3_EXT_conf_nid(nullptr, &context, NID_authority_key_identifier, "keyid") : nullptr);
  made = issuer != nullptr && X509_CRL_add_ext(crl.get(), issuer.get(), -1) == 1;
  if (!made) return openssl_error("cannot make a list");
  for (const RevokedOne& one : list.entries) TERRACE_RETURN_IF_ERROR(add_entry(*crl, one));
  if (X509_CRL_sort(crl.get()) != 1 || X509_CRL_sign(crl.get(), ca.key.get(), EVP_sha256()) == 0)
    return openssl_error("cannot sign a list");
  return to_pem([&](BIO* bio) { return PEM_write_bio_X509_CRL(bio, crl.get()); });
}

int64_t list_days(const Ca& ca, int64_t days) {
  return std::clamp<int64_t>(seconds_until(*X509_get0_notAfter(ca.certificate.get())) / cert_day_s, 1, days);
}

}  // namespace terrace::cli
