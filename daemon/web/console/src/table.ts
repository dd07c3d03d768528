// SPDX-License-Identifier: Apache-2.0
// A table that is sorted by a click on a column's head, and shows so many rows until more are asked for.
import * as format from "./format";
import { h, type Child, type VNode } from "./vdom";

export interface Column<Row> {
  name: string;
  show: (row: Row) => Child;
  sort?: (row: Row) => number | string;
  number?: boolean;
  wide?: boolean; // may break its lines
}
export interface TableState { by: number; down: boolean; rows: number }

export function tableState(by = 0, down = false): TableState { return { by, down, rows: 100 }; }

export function sorted<Row>(rows: Row[], columns: Column<Row>[], state: TableState): Row[] {
  const value = columns[state.by]?.sort;
  if (!value) return rows;
  const sign = state.down ? -1 : 1;
  return rows.map((row) => [value(row), row] as const)
    .sort(([left], [right]) => (left < right ? -sign : left > right ? sign : 0)).map(([, row]) => row);
}

export function table<Row>(caption: string, rows: Row[], columns: Column<Row>[], state: TableState, key: (row: Row) => string,
  redraw: () => void, none: string): VNode {
  if (rows.length === 0) return h("p", { class: "empty" }, none);
  const sortBy = (index: number) => (): void => {
    state.down = state.by === index ? !state.down : columns[index]!.number === true;
    state.by = index;
    redraw();
  };
  const head = columns.map((column, index) => {
    const direction = state.by !== index ? "none" : state.down ? "descending" : "ascending";
    return h("th", { scope: "col", class: column.number ? "number" : "", "aria-sort": column.sort ? direction : false },
      column.sort ? h("button", { class: "sort", onclick: sortBy(index) }, column.name,
        h("span", { class: "arrow", "aria-hidden": "true" }, direction === "none" ? "" : state.down ? "▾" : "▴")) : column.name);
  });
  const shown = sorted(rows, columns, state).slice(0, state.rows);
  const body = shown.map((row) => h("tr", { key: key(row) }, columns.map((column) =>
    h("td", { class: `${column.number ? "number" : ""}${column.wide ? " wide" : ""}` }, column.show(row)))));
  const more = rows.length > shown.length && h("p", { class: "more" },
    `${format.count(shown.length)} of ${format.count(rows.length)} rows `,
    h("button", { onclick: () => { state.rows *= 4; redraw(); } }, "Show more"));
  return h("div", null, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", null, h("thead", null, h("tr", null, head)), h("tbody", null, body))), more);
}
