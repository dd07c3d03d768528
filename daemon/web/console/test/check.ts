// SPDX-License-Identifier: Apache-2.0
// A test is a name and a function that throws; the process ends with 1 if any did.
declare const process: { exitCode: number };

export function test(name: string, run: () => void): void {
  try {
    run();
    console.log(`  passed  ${name}`);
  } catch (problem) {
    process.exitCode = 1;
    console.log(`  FAILED  ${name}: ${problem instanceof Error ? problem.message : problem}`);
  }
}
export function same(got: unknown, wanted: unknown): void {
  const left = JSON.stringify(got), right = JSON.stringify(wanted);
  if (left !== right) throw new Error(`${left} is not ${right}`);
}
