// SPDX-License-Identifier: Apache-2.0
// The console: which page is shown, what it needs of the manager, and the frame around it.
import { dialog } from "./act";
import { type Theme } from "./colours";
import * as format from "./format";
import { doctor } from "./pages/doctor";
import { audit, events } from "./pages/events";
import { hosts } from "./pages/hosts";
import { leases } from "./pages/leases";
import { map, timing } from "./pages/map";
import { overview } from "./pages/overview";
import { planner } from "./pages/planner";
import { tenants } from "./pages/tenants";
import { tiering } from "./pages/tiering";
import { topology } from "./pages/topology";
import { Store, type Kind } from "./store";
import { h, patch, type Child, type VNode } from "./vdom";
import { badge, healthTone, nameTenants, type View } from "./view";

// `leaseFields`: what the page reads of each lease; without it all of them. Ten thousand leases are 7 MB otherwise.
interface Page { name: string; title: string; needs: Kind[]; leaseFields?: string; show: (view: View) => Child }
const use = "id,pool,tenant,phase,bytes", place = `${use},label,expires_in_ns,persistent,holders,movable,extents`;
const pages: Page[] = [
  { name: "overview", title: "Overview", needs: ["history", "leases", "queue", "hosts", "events", "audit"], leaseFields: use, show: overview },
  { name: "map", title: "Pool map", needs: ["devices", "leases"], leaseFields: place, show: map },
  { name: "topology", title: "Topology", needs: ["devices", "inventory"], show: topology },
  { name: "leases", title: "Leases", needs: ["leases"], show: leases },
  { name: "tenants", title: "Tenants", needs: ["leases", "quotas", "reservations"], leaseFields: use, show: tenants },
  { name: "tiering", title: "Tiering", needs: ["leases", "runs"], leaseFields: `${use},usage`, show: tiering },
  { name: "hosts", title: "Hosts", needs: ["hosts"], show: hosts },
  { name: "planner", title: "Planner", needs: [], show: planner },
  { name: "doctor", title: "Doctor", needs: ["doctor"], show: doctor },
  { name: "events", title: "Events", needs: ["events"], show: events },
  { name: "audit", title: "Audit log", needs: ["audit"], show: audit },
];

const darkWanted = window.matchMedia("(prefers-color-scheme: dark)");
const theme: Theme = { dark: darkWanted.matches };
let due = false;
let tenantsOf = -1; // the answer whose tenants have colours

const store = new Store(redraw);

function redraw(): void {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    draw();
  });
}

function where(): { page: Page; path: string[] } {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { page: pages.find((one) => one.name === parts[0]) ?? pages[0]!, path: parts.slice(1).filter((part) => part !== "") };
}

function banner(): Child {
  if (!store.connected) {
    const age = store.answeredAt > 0 ? ` What is shown is ${format.duration((performance.now() - store.answeredAt) * 1e6)} old.` : "";
    return h("div", { class: "banner critical", role: "alert", id: "disconnected" }, h("b", null, "The manager does not answer."), ` It is asked again every two seconds.${age}`);
  }
  if (store.denied) return h("div", { class: "banner warning", role: "alert" }, h("b", null, "You may not look here. "), store.denied);
  const failed = store.error("status") || store.error("health");
  return failed ? h("div", { class: "banner warning", role: "alert" }, h("b", null, "The manager refuses to answer: "), failed) : null;
}

function state(): VNode {
  if (!store.connected) return badge("disconnected", "critical");
  const health = store.get("health");
  return health ? badge(health.summary.severity, healthTone(health.summary.severity)) : badge("asking", "plain");
}

function who(): Child {
  const asked = store.get("whoami")?.who;
  return asked && h("div", { id: "who", title: asked.read_only ?? asked.name }, asked.read_only ? "read only" : asked.role);
}

function draw(): void {
  const { page, path } = where();
  if (store.version("leases") !== tenantsOf) {
    tenantsOf = store.version("leases");
    nameTenants((store.get("leases")?.leases ?? []).map((lease) => lease.tenant));
  }
  const view: View = { store, theme, path, redraw };
  const server = store.get("status")?.server;
  document.title = `${page.title} · Terrace`;
  patch(document.getElementById("app")!, [
    h("a", { class: "skip", href: "#main", onclick: (event: Event) => { event.preventDefault(); document.getElementById("main")!.focus(); } }, "To the page"),
    h("div", { class: "frame" },
      h("nav", { "aria-label": "Pages" },
        h("div", { class: "brand" }, h("img", { src: "icon.svg", alt: "", width: "26", height: "26" }), h("span", null, "Terrace"), state()),
        h("ul", null, pages.map((one) => h("li", { key: one.name }, h("a", { href: `#/${one.name}`, "aria-current": one === page ? "page" : false }, one.title)))),
        h("div", { class: "foot" }, server ? `version ${server.version}` : "", who())),
      h("div", { class: "content" }, banner(),
        h("main", { id: "main", tabindex: "-1", key: page.name }, h("h1", null, page.title), page.show(view)))), dialog(view)]);
}

function turn(): void {
  store.want(["status", "health", "whoami", ...where().page.needs], where().page.leaseFields ?? "");
  redraw();
}

window.addEventListener("hashchange", () => {
  turn();
  window.scrollTo(0, 0);
});
darkWanted.addEventListener("change", () => {
  theme.dark = darkWanted.matches;
  redraw();
});
// How old what is shown is, while nothing new comes.
window.setInterval(() => { if (!store.connected) redraw(); }, 1000);
Object.assign(window, { terraceConsole: { timing } });
turn();
