# SPDX-License-Identifier: Apache-2.0
"""Certificates of a host or a manager that end soon: `terrace cert` makes none."""

import datetime
import subprocess


def old_certificate(ca, directory, name, days, role="host", usage="extendedKeyUsage = clientAuth"):
    """Made two years ago by the CA in `ca`, ends in so many days; NAME.pem and NAME.key are put there. `directory` takes what
    openssl needs for it."""
    work = directory / f"old-{name}"
    work.mkdir()
    (work / "index.txt").write_text("")
    (work / "serial").write_text(f"7A0{len(name)}\n")
    (work / "ca.cnf").write_text(
        f"[ca]\ndefault_ca = it\n[it]\ndatabase = {work}/index.txt\nserial = {work}/serial\n"
        f"new_certs_dir = {work}\ncertificate = {ca}/ca.pem\nprivate_key = {ca}/ca.key\n"
        "default_md = sha256\npolicy = any\nx509_extensions = of_host\n[any]\ncommonName = supplied\n"
        f"[of_host]\n{usage}\n")
    now = datetime.datetime.utcnow()
    key, csr, made = ca / f"{name}.key", work / "csr", ca / f"{name}.pem"

    def openssl(*words):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)

    openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", csr,
            "-subj", f"/CN={role}:{name}")
    openssl("ca", "-batch", "-notext", "-config", work / "ca.cnf", "-in", csr, "-out", made,
            "-startdate", (now - datetime.timedelta(days=730)).strftime("%Y%m%d%H%M%SZ"),
            "-enddate", (now + datetime.timedelta(days=days, hours=1)).strftime("%Y%m%d%H%M%SZ"))
    key.chmod(0o600)
