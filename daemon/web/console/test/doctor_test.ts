// SPDX-License-Identifier: Apache-2.0
import { counts, grouped } from "../src/pages/doctor";
import type { DoctorCheck } from "../src/types";
import { same, test } from "./check";

const check = (name: string, group: string, state: string): DoctorCheck => ({ name, group, state, found: "", meaning: "", fix: "", essential: false });
const some = [check("socket", "access", "ok"), check("cxl", "hardware", "missing"), check("kernel", "machine", "ok"), check("dax", "hardware", "limited")];

test("checks stand in their groups, known groups first, and a group that is not known is shown, too", () => {
  same(grouped(some).map((one) => [one.group, one.checks.map((each) => each.name)]),
    [["machine", ["kernel"]], ["hardware", ["cxl", "dax"]], ["access", ["socket"]]]);
});
test("every check counts once", () => { same(counts(some), { ok: 2, limited: 1, missing: 1 }); });
