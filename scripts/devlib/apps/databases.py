# SPDX-License-Identifier: Apache-2.0
"""sqlite3, postgres, mariadb and RocksDB: the same rows, files that check clean, also after a restart."""

import glob
import os
import re
import signal

from devlib.apps.registry import App
from devlib.apps.side import Side, digest, file_digest

SQLITE = """PRAGMA cache_size=-80000; PRAGMA page_size=16384; PRAGMA temp_store=memory;
CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<{rows})
INSERT INTO t SELECT i, printf('row %d %d', i, (i*7919)%100003), i*0.5 FROM n;
CREATE INDEX ti ON t(b);
DELETE FROM t WHERE a%7=3;
UPDATE t SET b=b||'x' WHERE a%5=1;
CREATE TABLE large(k INTEGER PRIMARY KEY, v BLOB);
INSERT INTO large SELECT a, zeroblob(20000+a) FROM t WHERE a<600;
SELECT count(*), sum(a), max(b), total(c) FROM t;
SELECT count(*), sum(x.a*y.a) FROM t x JOIN t y ON x.b=y.b;
SELECT sum(length(json_group)) FROM (SELECT json_group_array(b) AS json_group FROM t GROUP BY a%100);
SELECT group_concat(b) FROM (SELECT b FROM t ORDER BY b DESC LIMIT 20000);
SELECT a, row_number() OVER (ORDER BY c DESC), sum(a) OVER (ORDER BY b) FROM t ORDER BY b LIMIT 2000;
PRAGMA integrity_check;
VACUUM;
SELECT count(*) FROM t WHERE b LIKE 'row 1%';
"""

# Sums over floats and orders of ties may depend on the plan; these do not.
QUERIES = """
SELECT count(*), sum(abalance), md5(string_agg(aid||':'||abalance, ',' ORDER BY aid)) FROM pgbench_accounts;
SELECT sum(tbalance), md5(string_agg(tid||':'||tbalance, ',' ORDER BY tid)) FROM pgbench_tellers;
SELECT sum(bbalance) FROM pgbench_branches;
SELECT count(*), sum(delta), md5(string_agg(t, ',' ORDER BY t)) FROM
  (SELECT tid||':'||bid||':'||aid||':'||delta AS t, delta FROM pgbench_history) h;
"""
ANALYSIS = """
SET work_mem='64MB'; SET max_parallel_workers_per_gather=2; SET parallel_setup_cost=0; SET parallel_tuple_cost=0;
CREATE TABLE words AS SELECT i, md5(i::text) AS word, i%1000 AS kind FROM generate_series(1,{rows}) i;
CREATE INDEX ON words(word);
SELECT count(*), md5(string_agg(word, '' ORDER BY word)) FROM words;
SELECT count(*), sum(a.i::bigint*b.i) FROM words a JOIN words b ON a.word=b.word;
SELECT md5(string_agg(kind||':'||n||':'||w, ',' ORDER BY kind)) FROM
  (SELECT kind, count(*) AS n, min(word) AS w FROM words GROUP BY kind) k;
SELECT md5(string_agg(i::text, ',' ORDER BY word DESC)) FROM words;
"""
MARIADB = """
CREATE DATABASE t; USE t;
SET group_concat_max_len=16000000, sort_buffer_size=8000000, join_buffer_size=4000000, tmp_table_size=32000000;
CREATE TABLE words(i INT PRIMARY KEY, word CHAR(32), kind INT, n INT NOT NULL) ENGINE=InnoDB;
INSERT INTO words SELECT seq, md5(seq), seq%1000, 0 FROM seq_1_to_{rows};
CREATE INDEX w ON words(word);
CREATE TABLE texts(i INT PRIMARY KEY, t TEXT, FULLTEXT(t)) ENGINE=Aria;
INSERT INTO texts SELECT a.i, group_concat(b.word ORDER BY b.i SEPARATOR ' ') FROM words a JOIN words b
  ON b.i BETWEEN a.i*8-7 AND a.i*8 WHERE a.i<={rows}/80 GROUP BY a.i;
CREATE TABLE large(i INT PRIMARY KEY, v LONGBLOB) ENGINE=InnoDB ROW_FORMAT=COMPRESSED;
INSERT INTO large SELECT seq, repeat(md5(seq), 2000+seq) FROM seq_1_to_200;
DELETE FROM words WHERE i%7=3;
SELECT count(*), sum(a.i*b.i) FROM words a JOIN words b ON a.word=b.word;
SELECT md5(group_concat(i ORDER BY word DESC)) FROM words;
SELECT i, row_number() OVER (ORDER BY word), sum(i) OVER (ORDER BY word) FROM words ORDER BY i LIMIT 2000;
SELECT count(*) FROM texts WHERE MATCH(t) AGAINST (md5(40));
SELECT md5(group_concat(json_extract(j, '$.w') ORDER BY kind)) FROM
  (SELECT kind, json_object('w', min(word), 'n', count(*)) AS j FROM words GROUP BY kind) k;
"""
# Of four clients at once: sums, the same in every order.
MARIADB_CLIENT = """USE t;
UPDATE words SET n=n+1 WHERE i={row};
BEGIN; UPDATE words SET n=n+2, kind=kind+1 WHERE i BETWEEN {row} AND {row}+20; COMMIT;
BEGIN; UPDATE words SET n=n+100 WHERE i BETWEEN {row} AND {row}+400; ROLLBACK;
INSERT INTO large VALUES ({row}*10+{client}+1000, repeat('{client}', 40000));
SELECT count(*), min(word) FROM words WHERE word LIKE '{client}%';
"""
MARIADB_QUERIES = """USE t; SET group_concat_max_len=16000000;
SELECT count(*), sum(n), sum(kind), md5(group_concat(word ORDER BY i SEPARATOR '')) FROM words;
SELECT md5(group_concat(concat(i,':',n) ORDER BY i)) FROM words;
SELECT count(*), sum(crc32(t)) FROM texts;
SELECT count(*), sum(length(v)), sum(crc32(v)) FROM large;
CHECK TABLE words, texts, large EXTENDED;
"""


def _sqlite(side: Side) -> dict:
    script = SQLITE.format(rows=60000 if side.quick else 300000)
    with side.clock():
        out = side.run("sqlite3", "t.db", stdin=script.encode())
    again = side.run("sqlite3", "t.db", stdin=b"PRAGMA integrity_check;SELECT count(*), sum(k) FROM large;").decode()
    return {"rows": digest(out), "last row": out.splitlines()[-1].decode(), "opened again": again,
            "database file": file_digest(side.folder / "t.db")}


def _program(name: str) -> str:
    """Of the newest postgres that is installed; Debian keeps it out of PATH."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return found[-1] if found else name


def _postgres(side: Side) -> dict:
    data, results = side.open_to_all() / "data", {}
    sockets = data.parent
    options = {"as_user": True, "cwd": data.parent}
    connect = ["-h", sockets, "-U", "postgres"]

    def query(text: str) -> str:
        return side.run(_program("psql"), *connect, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "postgres",
                        stdin=text.encode(), **options).decode()

    def start():
        server = side.start(_program("postgres"), "-D", data, "-k", sockets, "-h", "", "-c", "fsync=off", "-c",
                            "shared_buffers=64MB", "-c", "jit=off", **options)
        side.wait_for(lambda: (data / "postmaster.pid").exists()
                      and "ready" in (data / "postmaster.pid").read_text(), server, "postgres being ready")
        return server

    side.run(_program("initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "--locale=C.UTF-8",
             **options)
    server = start()
    side.run(_program("pgbench"), *connect, "-i", "-q", "-s", "1" if side.quick else "4", "postgres", **options)
    with side.clock():
        out = side.run(_program("pgbench"), *connect, "-c", "4", "-j", "2", "-t", "300" if side.quick else "3000",
                       "--random-seed=7", "-n", "postgres", **options).decode()
        results["analysis"] = query(ANALYSIS.format(rows=40000 if side.quick else 300000))
    results["transactions"] = next(line for line in out.splitlines() if "actually processed" in line)
    side.rate("pgbench_tps", float(out.partition("tps = ")[2].split()[0]))
    results["tables"] = query(QUERIES)
    side.stop(server, signal.SIGINT)
    server = start()
    results["tables after a restart"] = query(QUERIES)
    query("VACUUM FULL; REINDEX DATABASE postgres;")
    results["tables after a vacuum"] = query(QUERIES)
    side.stop(server, signal.SIGINT)
    return results


def _mariadb(side: Side) -> dict:
    home, rows, results = side.open_to_all(), 30000 if side.quick else 90000, {}
    options = {"as_user": True, "cwd": home, "env": {"TMPDIR": str(home)}}
    socket = home / "socket"
    client = ("mariadb", "--no-defaults", "-S", socket, "-u", "root", "-N", "-B")

    def query(text: str) -> str:
        return side.run(*client, stdin=text.encode(), **options).decode()

    def start():
        server = side.start("mariadbd", "--no-defaults", f"--datadir={home}/data", f"--socket={socket}",
                            f"--pid-file={home}/pid", "--skip-networking", "--innodb-buffer-pool-size=48M",
                            "--innodb-flush-log-at-trx-commit=0", **options)
        side.wait_for(socket.exists, server, "mariadb being ready")
        return server

    side.run("mariadb-install-db", "--no-defaults", f"--datadir={home}/data", "--skip-test-db",
             "--auth-root-authentication-method=normal", **options)
    server = start()
    with side.clock():
        results["rows"] = digest(query(MARIADB.format(rows=rows)))
        for number in range(4):
            side.script(f"client{number}.sql", "".join(MARIADB_CLIENT.format(row=row, client=number)
                                                       for row in range(1, rows // 4, rows // 400)))
        told = side.run("xargs", "-P", "4", "-I", "%", *client, "-e", f"source {side.folder}/client%.sql",
                        stdin=b"0\n1\n2\n3\n", **options)
        results["clients"] = digest(b"\n".join(sorted(told.splitlines())))
    results["tables"] = query(MARIADB_QUERIES)
    side.stop(server)
    server = start()
    results["tables after a restart"] = query(MARIADB_QUERIES)
    results["optimized"] = query("USE t; ALTER TABLE words ENGINE=Aria; OPTIMIZE TABLE texts; ANALYZE TABLE words;")
    results["tables in another engine"] = query(MARIADB_QUERIES)
    side.stop(server)
    return results


def _rocksdb(side: Side) -> dict:
    """What db_bench writes by one thread, and finds by four, follows from its seed; ldb reads it in its own process."""
    options = ("--db=db", "--seed=7", f"--num={20000 if side.quick else 80000}", "--value_size=400",
               "--cache_size=32000000", "--compression_type=zstd", "--write_buffer_size=4000000",
               "--target_file_size_base=1000000", "--max_bytes_for_level_base=4000000", "--max_background_jobs=2",
               "--bloom_bits=10")
    results = {}

    def bench(names: str, *more) -> str:
        text = side.run("db_bench", *options, f"--benchmarks={names}", *more).decode()
        found = re.findall(r"^(\w+) +: .* (\d+) ops/sec .*?(\d+ operations);(?:.*(\(.* found\)))?", text,
                           re.MULTILINE)
        for name, rate, *_ in found:
            if name in ("fillrandom", "overwrite", "readrandom"):
                side.rate(f"rocksdb_{name}_per_s", float(rate))
        return "; ".join(" ".join((name, *counted)) for name, _, *counted in found)

    def rows() -> str:
        return digest(side.run("ldb", "--db=db", "scan", "--hex"))

    with side.clock():
        results["written"] = bench("fillrandom,overwrite,deleterandom")
        results["rows"] = rows()
        results["found"] = bench("readrandom,seekrandom,readseq,readreverse,multireadrandom", "--use_existing_db=1",
                                 "--threads=4")
        results["changed"] = bench("updaterandom,mergerandom,compact", "--use_existing_db=1",
                                   "--merge_operator=stringappend")
    results["rows after a compaction"] = rows()
    results["consistency"] = side.run("ldb", "--db=db", "checkconsistency").decode()
    side.run("sst_dump", "--file=db", "--command=verify")
    return results


APPS = [
    App("sqlite3", "inserts, index, join, window functions, vacuum; the database file byte by byte", _sqlite,
        programs={"sqlite3": "sqlite3"}),
    App("postgres", "initdb, pgbench of 4 clients, parallel queries, restart, vacuum; not as root", _postgres,
        files={_program("postgres") if os.path.isabs(_program("postgres")) else "/usr/lib/postgresql": "postgresql"}),
    App("mariadb", "inserts, joins, full text, four clients, restart, CHECK TABLE; not as root", _mariadb,
        programs={"mariadbd": "mariadb-server-core", "mariadb": "mariadb-client-core",
                  "mariadb-install-db": "mariadb-server-core"}),
    App("db_bench", "RocksDB: fills, overwrites, reads by four threads, compaction; rows by ldb", _rocksdb,
        programs={"db_bench": "rocksdb-tools", "ldb": "rocksdb-tools", "sst_dump": "rocksdb-tools"}),
]
