// SPDX-License-Identifier: Apache-2.0
// What a page shows, as plain objects, and the least change that makes the document show it. Elements stay where they are,
// so that the keyboard's focus, a selection and a canvas outlive a new answer of the manager.
//
// Text becomes text nodes and nothing else: a name of somebody else's is never markup.

export type Child = VNode | string | number | null | undefined | false;
type Handler = (event: any) => void;
export interface Props {
  key?: string;
  style?: Record<string, string>;
  ref?: (element: any) => void; // after each change, once it is in the document
  [name: string]: unknown;
}
export interface VNode { tag: string; props: Props; children: Child[] }

export function h(tag: string, props?: Props | null, ...children: (Child | Child[])[]): VNode {
  return { tag, props: props ?? {}, children: children.flat() };
}

interface Kept { props: Props; key: string | undefined }
const kept = new WeakMap<Element, Kept>();
const svgNames = "http://www.w3.org/2000/svg";
const asProperty = new Set(["value", "checked", "disabled", "selected"]);

function setStyle(element: HTMLElement | SVGElement, now: Record<string, string>, before: Record<string, string>): void {
  for (const name of Object.keys(before)) if (!(name in now)) element.style.removeProperty(name);
  for (const [name, value] of Object.entries(now)) if (before[name] !== value) element.style.setProperty(name, value);
}

function setProps(element: Element, now: Props, before: Props): void {
  for (const name of Object.keys(before)) {
    if (name in now || name === "key" || name === "ref" || name === "style") continue;
    if (name.startsWith("on")) (element as any)[name] = null;
    else element.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(now)) {
    if (name === "key" || name === "ref" || name === "style") continue;
    if (name.startsWith("on")) (element as any)[name] = value as Handler;
    else if (asProperty.has(name) && element.localName !== "option") {
      if ((element as any)[name] !== value) (element as any)[name] = value;
    } else if (value === false || value === null || value === undefined) element.removeAttribute(name);
    else if (before[name] !== value) element.setAttribute(name, value === true ? "" : String(value));
  }
  setStyle(element as HTMLElement, now.style ?? {}, before.style ?? {});
}

function make(node: VNode, svg: boolean): Element {
  return svg ? document.createElementNS(svgNames, node.tag) : document.createElement(node.tag);
}

function keyOf(node: Node): string | undefined {
  return kept.get(node as Element)?.key;
}

function fits(element: Node, node: VNode): boolean {
  return element.nodeType === Node.ELEMENT_NODE && (element as Element).localName === node.tag && keyOf(element) === node.props.key;
}

// The element that shows `node` from now on: `at`, another one of the same key, or a new one.
function place(parent: Element, at: Node | null, node: VNode, keyed: Map<string, Node>, svg: boolean): Element {
  const inside = svg || node.tag === "svg";
  let element: Element;
  const known = node.props.key === undefined ? undefined : keyed.get(node.props.key);
  if (at !== null && fits(at, node)) element = at as Element;
  else if (known !== undefined && fits(known, node)) element = parent.insertBefore(known, at) as Element;
  else element = parent.insertBefore(make(node, inside), at);
  setProps(element, node.props, kept.get(element)?.props ?? {});
  kept.set(element, { props: node.props, key: node.props.key });
  if (node.tag !== "canvas") patch(element, node.children, inside && node.tag !== "foreignObject");
  node.props.ref?.(element);
  return element;
}

export function patch(parent: Element, children: Child[], svg = false): void {
  const keyed = new Map<string, Node>();
  for (const child of Array.from(parent.childNodes)) {
    const key = keyOf(child);
    if (key !== undefined) keyed.set(key, child);
  }
  let at: Node | null = parent.firstChild;
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (typeof child === "object") {
      at = place(parent, at, child, keyed, svg).nextSibling;
      continue;
    }
    const text = String(child);
    if (at !== null && at.nodeType === Node.TEXT_NODE) {
      if (at.nodeValue !== text) at.nodeValue = text;
      at = at.nextSibling;
    } else parent.insertBefore(document.createTextNode(text), at);
  }
  while (at !== null) {
    const next: Node | null = at.nextSibling;
    parent.removeChild(at);
    at = next;
  }
}
