"""sqlite3 and postgres: the same rows, files that check clean, also after a restart."""

import glob
import os
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


APPS = [
    App("sqlite3", "inserts, index, join, window functions, vacuum; the database file byte by byte", _sqlite,
        programs={"sqlite3": "sqlite3"}),
    App("postgres", "initdb, pgbench of 4 clients, parallel queries, restart, vacuum; not as root", _postgres,
        files={_program("postgres") if os.path.isabs(_program("postgres")) else "/usr/lib/postgresql": "postgresql"}),
]
