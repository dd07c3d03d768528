// SPDX-License-Identifier: Apache-2.0
#include "daemon/tls/credentials.h"

#include <fcntl.h>
#include <kj/debug.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <utility>

#include "core/base/unique_fd.h"
#include "daemon/log/log.h"

namespace terrace::daemon {
namespace {

constexpr int64_t warn_again_s = 86'400, ask_again_s = 3'600;

CertificateEnd end_of(const char* what, std::string name, int64_t begins_s, int64_t ends_s, int64_t now_s) {
  return {.what = what,
          .name = std::move(name),
          .days_left = days_left(ends_s, now_s),
          .soon = ends_soon(begins_s, ends_s, now_s)};
}

int64_t half_of(const CertificateFacts& one) {
  return one.ends_s - (one.ends_s - one.begins_s) / 2;
}

bool half_is_over(const CertificateFacts& one, int64_t now_s) {
  return now_s >= half_of(one);
}

}  // namespace

std::string end_warning(const CertificateEnd& end) {
  if (!end.soon) return "";
  const std::string days = std::to_string(end.days_left) + (end.days_left == 1 ? " day" : " days");
  if (end.what == "revocation list") {
    return "the list of revoked certificates " + end.name + " was to be signed anew within " + days +
           ": `terrace cert revoke --none` where the CA is, and copy it; it is used on";
  }
  if (end.what == "ca") {
    return "the CA '" + end.name + "' ends within " + days +
           ", and with it every certificate that it issued: make a new one and issue all anew";
  }
  return "the certificate of " + end.name + " ends within " + days +
         ": `terrace cert issue` a new one and replace the files; they are read again without a restart";
}

Credentials::Credentials(TlsFiles files, TlsRole role, kj::Timer& timer, SeenAll seen, TlsIdentity identity,
                         RevocationList revoked)
    : files_(std::move(files)),
      role_(role),
      timer_(&timer),
      used_(seen),
      last_(seen),
      identity_(std::move(identity)),
      revoked_(std::move(revoked)) {}

Result<Credentials> Credentials::read(TlsFiles files, TlsRole role, kj::Timer& timer) {
  const SeenAll seen = look_at(files);  // before: what changes meanwhile is read again
  TERRACE_ASSIGN_OR_RETURN(TlsIdentity identity, read_tls_identity(files, role));
  RevocationList revoked;
  if (!files.revoked.empty()) {
    TERRACE_ASSIGN_OR_RETURN(revoked, read_revoked(files));
  }
  return Credentials(std::move(files), role, timer, seen, std::move(identity), std::move(revoked));
}

kj::Promise<Shaken> Credentials::accept(kj::AuthenticatedStream stream, CertificateRefused refused,
                                        kj::Duration within) {
  auto late = timer_->afterDelay(within).then([]() -> kj::Promise<Shaken> {
    return KJ_EXCEPTION(DISCONNECTED, "it did not end its TLS handshake in time");
  });
  return watch_handshake([this](const std::string& serial) { return is_revoked(serial); },
                         [this, &stream] { return identity_.context->wrapServer(kj::mv(stream)); },
                         std::move(refused))
      .attach(kj::heap(identity_.context))
      .exclusiveJoin(kj::mv(late));
}

kj::Promise<Shaken> Credentials::connect(kj::AuthenticatedStream stream) {
  return watch_handshake(
             [this](const std::string& serial) { return is_revoked(serial); },
             [this, &stream] { return identity_.context->wrapClient(kj::mv(stream), tls_server_name); })
      .attach(kj::heap(identity_.context));
}

std::vector<CertificateEnd> Credentials::ends(int64_t now_s) const {
  const CertificateFacts &ca = identity_.ca, &own = identity_.own;
  std::vector<CertificateEnd> all{end_of("certificate", own.name, own.begins_s, own.ends_s, now_s),
                                  end_of("ca", ca.name, ca.begins_s, ca.ends_s, now_s)};
  if (revoked_.until_s != 0)
    all.push_back(end_of("revocation list", files_.revoked, revoked_.made_s, revoked_.until_s, now_s));
  return all;
}

Credentials::SeenAll Credentials::look_at(const TlsFiles& files) {
  const std::array<const std::string*, 4> paths{&files.ca, &files.certificate, &files.key, &files.revoked};
  SeenAll all;
  for (size_t i = 0; i < paths.size(); ++i) {
    struct stat status {};
    if (paths[i]->empty() || ::stat(paths[i]->c_str(), &status) != 0) continue;
    all[i] = {.device = status.st_dev,
              .inode = status.st_ino,
              .bytes = static_cast<uint64_t>(status.st_size),
              .changed_s = status.st_mtim.tv_sec,
              .changed_ns = status.st_mtim.tv_nsec};
  }
  return all;
}

bool Credentials::look_again() {
  const SeenAll now = look_at(files_);
  const bool steady = now == std::exchange(last_, now);
  if (!steady || now == used_) return false;
  used_ = now;  // said once, whatever comes of it
  const bool identity = take_identity(), list = take_list();
  if (identity || list) warned_s_ = 0;
  return identity || list;
}

bool Credentials::take_identity() {
  auto read = read_tls_identity(files_, role_);
  if (!read.ok()) {
    log::error("a file of [tls] has changed and cannot be used, what was read before stays: {}",
               read.error().detail);
    return false;
  }
  identity_ = std::move(*read);
  log::info("the files of [tls] were read again: certificate {}", shown_certificate(identity_.own));
  return true;
}

// Whatever is wrong with our own certificate: nobody else's gets in for that.
bool Credentials::take_list() {
  if (files_.revoked.empty()) return false;
  auto read = read_revoked(files_);
  if (!read.ok()) {
    log::error("what was read before stays: {}", read.error().detail);
    return false;
  }
  if (read->issuer == revoked_.issuer && read->number < revoked_.number) {
    log::error(
        "the list of revoked certificates {} is older (number {}) than the one in use (number {}), which stays",
        files_.revoked, read->number, revoked_.number);
    return false;
  }
  revoked_ = std::move(*read);
  log::info("the list of revoked certificates {} was read again: {} entries", files_.revoked,
            revoked_.serials.size());
  return true;
}

void Credentials::warn_of_ends() {
  const int64_t now_s = std::time(nullptr);
  if (warned_s_ != 0 && now_s - warned_s_ < warn_again_s) return;
  warned_s_ = now_s;
  for (const CertificateEnd& end : ends(now_s))
    if (const std::string text = end_warning(end); !text.empty()) log::warn("{}", text);
}

Status Credentials::issue_with(const std::string& ca_key, int64_t days) {
  TERRACE_ASSIGN_OR_RETURN(issuer_, read_issuer(files_.ca, ca_key, days));
  issued_.emplace(ca_key.substr(0, ca_key.rfind('/') + 1), std::time(nullptr));
  return {};
}

// Noted first: `terrace cert revoke NAME` has to know what may be in use.
Result<std::string> Credentials::renew(const CertificateFacts& old) {
  const auto refused = [](ErrorCode code, std::string why) {
    return Error{.code = code, .where = "renewCertificate", .detail = std::move(why)};
  };
  if (!issuer_.has_value())
    return refused(ErrorCode::unsupported,
                   "this manager has no CA key ([tls] ca_key) to renew certificates with");
  const int64_t now_s = std::time(nullptr);
  if (!half_is_over(old, now_s))
    return refused(ErrorCode::busy,
                   "the certificate has more than half of its life left; it can be renewed from " +
                       shown_moment(half_of(old)) + " on");
  const int64_t life_s = issuer_->days * certificate_day_s;
  if (now_s + life_s <= old.ends_s)
    return refused(ErrorCode::busy,
                   "the certificate is good for longer than a renewed one would be ([tls] renew_days of the "
                   "manager); it can be renewed from " +
                       shown_moment(old.ends_s - life_s) + " on");
  const IssuedFile::Entry* before = issued_->newest_of(old);
  if (before != nullptr && !half_is_over(before->facts, now_s)) {
    if (is_revoked(before->facts.serial))
      return refused(ErrorCode::permission_denied, "the certificate that it was renewed to was revoked");
    return before->pem;
  }
  TERRACE_ASSIGN_OR_RETURN(std::string pem, issue_again(*issuer_, old));
  TERRACE_RETURN_IF_ERROR(issued_->note(pem, now_s));
  return pem;
}

bool Credentials::wants_renewal() {
  const int64_t now_s = std::time(nullptr);
  if (!renewal_is_due(identity_.own.begins_s, identity_.own.ends_s, now_s)) return false;
  if (asked_s_ != 0 && now_s - asked_s_ < ask_again_s) return false;
  asked_s_ = now_s;
  return true;
}

Status Credentials::install(const std::string& pem) {
  TERRACE_ASSIGN_OR_RETURN(const CertificateFacts facts, parse_facts(pem));
  if (!can_replace(facts, identity_.own, identity_.ca)) {
    return Error{
        .code = ErrorCode::invalid_argument,
        .where = "tls",
        .detail =
            "what came as a renewed certificate is for another key or name, of another CA, or ends sooner"};
  }
  TERRACE_RETURN_IF_ERROR(replace_credential(files_.certificate, pem));
  log::info("the certificate was renewed: {}, good for {} days", shown_certificate(facts),
            days_left(facts.ends_s, std::time(nullptr)));
  return {};
}

// A manager with the CA's key needs nobody else.
void Credentials::renew_own() {
  if (!issuer_.has_value() || !wants_renewal()) return;
  const auto pem = renew(identity_.own);
  const Status installed = pem.ok() ? install(*pem) : Status(pem.error());
  if (!installed.ok()) log::error("{}", installed.error().to_string());
}

kj::Promise<void> Credentials::watch() {
  if (look_again())
    for (const auto& changed : changed_) changed();
  renew_own();
  warn_of_ends();
  return timer_->afterDelay(1 * kj::SECONDS).then([this] { return watch(); });
}

}  // namespace terrace::daemon
