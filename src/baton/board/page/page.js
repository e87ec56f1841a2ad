"use strict";
// The web board. Text from jobs goes into the page by textContent alone; there is no innerHTML in this file.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const GROUPS = [
  ["waiting", "Waiting for you", "◆"], ["failed", "Failed", "✖"], ["stalled", "Stalled", "▲"],
  ["limited", "At a usage limit", "◷"], ["finished", "Finished, not seen yet", "✔"], ["working", "Working", "▶"],
  ["pending", "Pending", "○"], ["done", "Done", "·"], ["snoozed", "Snoozed", "z"],
];
const SYMBOL = Object.fromEntries(GROUPS.map(([need, , symbol]) => [need, symbol]));
const ENDED = ["completed", "error", "cancelled"];
const NEEDS = ["waiting", "failed", "stalled", "limited", "finished"];
const FIRST = 30; // rows of a group before "Show more"
const DOT = "\u00a0· ";
const STILL_MS = 500; // an answer right after the list moved was meant for something else

const cards = new Map();
const asked = new Map(); // request id → what was fetched of it
let rights = new Set();
let position = "";
let selected = null;
let tab = "live";
let stream = null;
let movedAt = 0;
let left = null; // an answered card that had the focus, and its place
let offset = 0; // how far the server's clock is ahead
const open = new Set();
let cost = [];

function el(tag, about = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((each) => each !== null && each !== undefined).map(asNode));
  return node;
}
function asNode(value) { return value instanceof Node ? value : document.createTextNode(String(value)); }
function svg(tag, about = {}, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(about)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
// Texts with dots between them; a line breaks after a dot, and within a text only if it is too long.
function dotted(texts) { return texts.map((text, index) => el("span", { class: "part" }, text + (index + 1 < texts.length ? DOT : ""))); }
function put(node, text) { if (node.textContent !== text) node.textContent = text; }

let sayTimer = 0;
function say(text) {
  put($("say"), text);
  clearTimeout(sayTimer);
  sayTimer = setTimeout(() => put($("say"), ""), 6000);
}

function span(ms) {
  const seconds = Math.max(Math.round(ms / 1000), 0);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}
const now = () => Date.now() + offset;
function clock(ms) { return new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false }); }
function usd(value) { return value === null || value === undefined ? "unknown" : `$${value < 0.1 && value > 0 ? value.toFixed(4) : value.toFixed(2)}`; }

// -- talking to the server ---------------------------------------------------------------------------------------------

// The login is a cookie for this path alone, so that servers at other ports of this host do not get it. What is stored
// here is for this port alone.
let place = null;
try { place = localStorage.getItem("place"); } catch { /* without storage, a reload needs a new address */ }
function keepPlace(value) {
  place = value;
  try { if (value) localStorage.setItem("place", value); else localStorage.removeItem("place"); } catch { /* as above */ }
}
const api = (path) => `/api/${place || "none"}${path}`;

class Problem extends Error { constructor(status, text) { super(text); this.status = status; } }

async function call(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", "X-Baton": "1" },
  };
  let answer;
  try { answer = await fetch(path, { ...options, cache: "no-store", credentials: "same-origin" }); }
  catch { throw new Problem(0, "The board cannot be reached."); }
  let found = {};
  try { found = await answer.json(); } catch { /* no JSON: the status says enough */ }
  if (answer.status === 401 && path !== "/api/login") showLogin(found.error);
  if (!answer.ok) throw new Problem(answer.status, found.error || `The board answered ${answer.status}.`);
  return found;
}

function showLogin(why) {
  if (stream) stream.close();
  stream = null;
  keepPlace(null);
  cards.clear();
  asked.clear();
  cost = [];
  if (selected !== null) closeDetail();
  $("detail").replaceChildren();
  $("cost-bars").replaceChildren();
  showTroubles([]);
  showList();
  $("main").hidden = $("cost").hidden = $("troubles").hidden = $("sign-out").hidden = $("show-cost").hidden = true;
  $("login").hidden = false;
  put($("login-why"), why || "");
  put($("state"), "signed out");
}

async function begin() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    history.replaceState(null, "", location.pathname);
    try { keepPlace((await call("/api/login", { token })).place); }
    catch (error) {
      // The same address again, in a browser that is signed in already, is no reason to stop.
      if (error.status !== 401) { say(error.message); }
      else $("login-why").textContent = error.message;
    }
  }
  await load();
}

async function load() {
  try {
    const found = await call(api("/board"));
    rights = new Set(found.rights);
    cards.clear();
    $("state").classList.remove("off");
    take(found);
    $("login").hidden = true;
    $("main").hidden = $("sign-out").hidden = $("show-cost").hidden = false;
    follow();
  } catch (error) {
    if (error.status !== 401) { offline(); setTimeout(load, 1000); }
  }
}

function follow() {
  if (stream) stream.close();
  stream = new EventSource(api(`/events?after=${encodeURIComponent(position)}`));
  stream.onmessage = (event) => {
    $("state").classList.remove("off");
    take(JSON.parse(event.data));
  };
  stream.onerror = () => {
    offline();
    if (stream && stream.readyState === EventSource.CLOSED) { stream = null; setTimeout(load, 1000); }
  };
}
function offline() {
  $("state").classList.add("off");
  put($("state"), "not connected, trying again");
}

function take(found) {
  offset = found.now - Date.now();
  position = found.position;
  for (const card of found.cards) cards.set(card.key, card);
  for (const key of found.removed || []) cards.delete(key);
  cost = found.cost;
  showTroubles(found.troubles);
  showList();
  if (!$("cost").hidden) showCost();
  if (selected !== null) {
    if (!cards.has(selected)) closeDetail();
    else if (found.cards.some((card) => card.key === selected)) loadDetail();
  }
  if (cards.size !== found.total) setTimeout(load, 300);
}

// -- the list ----------------------------------------------------------------------------------------------------------

function rank(card) {
  const oldest = ["waiting", "failed", "stalled", "limited", "pending"].includes(card.need);
  return oldest ? card.since : -card.since;
}

function showTroubles(troubles) {
  const box = $("troubles");
  box.hidden = troubles.length === 0;
  box.replaceChildren(...troubles.map((each) => el("p", {}, `Cannot read ${each.folder}: ${each.why}`)));
}

function showList() {
  const words = $("find").value.toLowerCase().split(/\s+/);
  const all = [...cards.values()];
  const shown = all.filter((card) => {
    const text = `${card.title} ${card.reason} ${card.folder} ${card.agent} ${card.state} ${card.job_id} ${card.labels.join(" ")}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  shown.sort((a, b) => rank(a) - rank(b) || (a.key < b.key ? -1 : 1));
  const waiting = all.filter((card) => NEEDS.includes(card.need)).length;
  document.title = waiting ? `(${waiting}) baton` : "baton";
  showRequests(shown.filter((card) => card.requests.length && card.need !== "snoozed"));
  for (const [need, name, symbol] of GROUPS) {
    showGroup(need, name, symbol, shown.filter((card) => card.need === need && !(need === "waiting" && card.requests.length)));
  }
  if (!$("state").classList.contains("off")) showCounts(all);
  put($("empty").firstElementChild, all.length ? "No job has these words." : "No jobs yet.");
  $("empty").lastElementChild.hidden = all.length > 0;
  $("empty").hidden = shown.length > 0;
}

// On a phone the words are for screen readers alone.
function showCounts(all) {
  const counts = GROUPS.slice(0, 7).map(([need, , symbol]) => [all.filter((card) => card.need === need).length, need, symbol]).filter(([count]) => count);
  const text = counts.map(([count, need]) => `${count} ${need}`).join(", ") || "no open jobs";
  const state = $("state");
  if (state.dataset.text === text && state.firstElementChild) return;
  state.dataset.text = text;
  state.replaceChildren(...(counts.length ? counts.map(([count, need, symbol]) => el("span", {}, el("span", { class: `mark ${need}`, "aria-hidden": "true" }, symbol), ` ${count}`, el("span", { class: "word" }, ` ${need}`), " ")) : [text]));
}

function showGroup(need, name, symbol, jobs) {
  const id = `group-${need}`;
  let group = $(id);
  if (!group) {
    group = el("section", { id, class: "group", "aria-labelledby": `${id}-name` },
      el("h2", { id: `${id}-name` }, el("span", { class: `mark ${need}`, "aria-hidden": "true" }, symbol), el("span"), el("span", { class: "soft" })),
      el("ul"), el("button", { type: "button", class: "more", onclick: () => { open.add(need); showList(); } }));
    $("groups").append(group);
  }
  group.hidden = jobs.length === 0;
  const [heading, list, more] = group.children;
  put(heading.children[1], name);
  put(heading.children[2], String(jobs.length));
  const most = open.has(need) ? jobs.length : FIRST;
  more.hidden = jobs.length <= most;
  put(more, `Show ${jobs.length - most} more`);
  arrange(list, jobs.slice(0, most).map((card) => [`job-${card.key}`, () => newRow(card), (row) => fillRow(row, card)]));
}

// Bring the children of a node into this order: keep what is there, so that focus and scrolling stay.
function arrange(parent, wanted) {
  const known = new Map([...parent.children].map((child) => [child.id, child]));
  let moved = false;
  wanted.forEach(([id, make, fill], index) => {
    let child = known.get(id);
    known.delete(id);
    if (!child) { child = make(); child.id = id; moved = true; }
    fill(child);
    if (parent.children[index] !== child) { parent.insertBefore(child, parent.children[index] || null); moved = true; }
  });
  for (const child of known.values()) { child.remove(); moved = true; }
  return moved;
}

function newRow(card) {
  return el("li", {}, el("button", { type: "button", class: "job", onclick: () => select(card.key) },
    el("span", { class: "mark", "aria-hidden": "true" }), el("span", { class: "title" }), el("span", { class: "age" }),
    el("span", { class: "about soft" }), el("span", { class: "why" })));
}
function fillRow(row, card) {
  const button = row.firstChild;
  const [mark, title, age, about, why] = button.children;
  mark.className = `mark ${card.need}`;
  put(mark, SYMBOL[card.need]);
  put(title, card.title || "(no title)");
  put(age, span(now() - card.since));
  put(about, [card.state, card.agent, short(card.folder)].join(DOT));
  put(why, card.reason);
  button.setAttribute("aria-current", String(card.key === selected));
}
function short(folder) { const parts = folder.split("/"); return parts.length > 3 ? `…/${parts.slice(-2).join("/")}` : folder; }

// -- requests ----------------------------------------------------------------------------------------------------------

function showRequests(waiting) {
  const wanted = waiting.flatMap((card) => card.requests.map((id) => [card, id]));
  $("asking").hidden = wanted.length === 0;
  const alive = new Set(wanted.map(([, id]) => id));
  for (const id of asked.keys()) if (!alive.has(id)) asked.delete(id);
  const moved = arrange($("cards"), wanted.map(([card, id]) => [`ask-${id}`, () => requestCard(card, id), () => {}]));
  if (moved) movedAt = performance.now();
  if (left && !left.box.isConnected) { // the card with the focus is gone: go on with the one in its place
    const next = $("cards").children[Math.min(left.at, wanted.length - 1)];
    (next ? next.querySelector(".open") : $("list")).focus({ preventScroll: true });
    left = null;
  }
}

function requestCard(card, id) {
  const box = el("article", { class: "card", "aria-labelledby": `ask-${id}-title` },
    el("h3", { id: `ask-${id}-title` }, el("button", { type: "button", class: "open", onclick: () => select(card.key) }, el("span", {}, card.title || card.job_id))),
    el("p", { class: "soft" }, ...dotted([card.agent, short(card.folder), "just now", id])),
    el("p", { class: "soft" }, "Loading what it asks …"));
  loadRequest(box, card, id);
  return box;
}

// Try again while the server is away: a card without its call cannot be answered.
function loadRequest(box, card, id) {
  fetchRequest(card.key, id).then((request) => fillRequest(box, card, request), (error) => {
    put(box.lastChild, error.message);
    setTimeout(() => { if (box.isConnected) loadRequest(box, card, id); }, 1000);
  });
}

async function fetchRequest(key, id) {
  if (asked.has(id)) return asked.get(id);
  for (const request of await call(api(`/jobs/${key}/requests`))) asked.set(request.request_id, request);
  if (!asked.has(id)) throw new Problem(404, `Request ${id} is closed.`);
  return asked.get(id);
}

function fillRequest(box, card, request) {
  box.lastChild.remove();
  box.dataset.since = String(Date.parse(request.asked_at));
  showAges();
  movedAt = performance.now();
  const may = rights.has("answer") && !request.screen_only;
  const exact = el("pre", { tabindex: "0", "aria-label": "The exact call" }, request.text);
  let end = 0; // how far the call has been on the screen
  let again = !request.default_no; // whether the next approval counts: the agent's own default is no
  const look = () => { end = Math.max(end, exact.scrollTop + exact.clientHeight); };
  exact.addEventListener("scroll", look);
  const send = (verb, more) => {
    look();
    if (verb === "approve" && end < exact.scrollHeight - 4) say("Nothing was sent: scroll the call to its end first.");
    else if (verb !== "deny" && !again) { again = true; say("Nothing was sent yet: the agent's own default is no. Press again to allow it all the same."); }
    else answer(box, card.key, request, verb, more);
  };
  // The form below repeats a question with all its choices.
  box.append(may && request.questions.length ? el("details", {}, el("summary", {}, "The exact request"), exact) : exact);
  if (request.screen_only) box.append(el("p", {}, "The agent takes this answer at its own screen alone: attach to its session."));
  if (!may) return;
  if (request.questions.length) { box.append(questionForm(request, send)); return; }
  const inexact = request.exact ? null : el("label", { class: "check" }, el("input", { type: "checkbox" }), "I accept that the agent may do more than is shown");
  const forJob = request.for_job ? el("label", { class: "check" }, el("input", { type: "checkbox" }), "Also allow equal calls of this job later") : null;
  const reason = el("input", { type: "text", "aria-label": "Reason for a denial", placeholder: "Reason for a denial (optional)", maxlength: "2000" });
  const more = el("details", {}, el("summary", {}, "More choices"), ...[forJob, reason].filter(Boolean));
  box.append(...[inexact].filter(Boolean), el("div", { class: "row" },
    el("button", { type: "button", class: "main", onclick: () => send("approve", {
      inexact: Boolean(inexact && inexact.firstChild.checked), for_job: Boolean(forJob && forJob.firstChild.checked) }) }, "Approve"),
    el("button", { type: "button", class: "bad", onclick: () => send("deny", { reason: reason.value }) }, "Deny")), more);
}

function questionForm(request, send) {
  const fields = request.questions.map((question, number) => {
    const name = `q-${request.request_id}-${number}`;
    const kind = question.several ? "checkbox" : "radio";
    const choices = question.choices.map((choice, index) => el("label", {}, el("input", { type: kind, name, value: String(index + 1) }), choice));
    const own = el("input", { type: "text", name: `${name}-own`, "aria-label": `Your own words: ${question.question}`, placeholder: "or in your own words", maxlength: "4000" });
    return el("fieldset", { class: "choices" }, el("legend", {}, question.question), ...choices, own);
  });
  const form = el("form", { class: "choices" }, ...fields, el("div", { class: "row" },
    el("button", { type: "submit", class: "main" }, "Answer"), el("button", { type: "button", class: "bad", onclick: () => send("deny", {}) }, "Deny")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const own = fields.map((field) => field.lastChild.value.trim());
    const typed = fields.map((field, number) => own[number]
      || [...field.querySelectorAll("input:checked")].map((each) => each.value).join(","));
    if (typed.some((each) => !each)) { say("Answer each question first."); return; }
    if (own.some(Boolean) && !own.every(Boolean) && fields.length > 1) { say("Answer all questions in your own words, or none."); return; }
    send("answer", { choices: fields.length === 1 ? typed : typed.map((each, number) => `${number + 1}=${each}`), own_words: own.every(Boolean) });
  });
  return form;
}

async function answer(box, key, request, verb, more) {
  if (performance.now() - movedAt < STILL_MS) { say("The list has just moved, so nothing was sent. Look again, then tap."); return; }
  const buttons = [...box.querySelectorAll("button")];
  if (box.contains(document.activeElement)) left = { box, at: [...$("cards").children].indexOf(box) }; // the card may go before the reply comes
  for (const each of buttons) each.disabled = true;
  try {
    const found = await call(api(`/jobs/${key}/requests/${request.request_id}/${verb}`), { ...more, text_sha256: request.text_sha256 });
    say(found.done);
    call(api(`/jobs/${key}/requests/${request.request_id}/outcome`))
      .then((known) => { if (known.not_proved) say(`Request ${request.request_id}: ${known.not_proved}`); }, () => {});
  } catch (error) {
    say(error.message);
    left = null;
    for (const each of buttons) each.disabled = false;
  }
}

// -- one job -----------------------------------------------------------------------------------------------------------

const TABS = [["live", "Live"], ["timeline", "Timeline"], ["history", "History"], ["explain", "Explain"], ["result", "Result"], ["diff", "Diff"], ["task", "Task"]];
let page = null;
let pane = null;
let known = "";
let opener = null;

function select(key) {
  opener = document.activeElement;
  selected = key;
  tab = ENDED.includes(cards.get(key)?.status) ? "result" : "live";
  page = null;
  document.body.classList.add("open");
  $("detail").hidden = false;
  $("detail").replaceChildren(el("p", { class: "soft" }, "Loading …"));
  showList();
  loadDetail().then(() => { $("detail").scrollTop = 0; if (innerWidth < 1000) scrollTo(0, 0); $("detail").focus({ preventScroll: true }); });
}
function closeDetail() {
  selected = null;
  page = pane = null;
  document.body.classList.remove("open");
  $("detail").hidden = true;
  showList();
  if (opener && opener.isConnected) opener.focus();
}

async function loadDetail() {
  const key = selected;
  try {
    const found = await call(api(`/jobs/${key}`));
    if (key !== selected) return;
    const first = page === null;
    page = found;
    if (first) showDetail(); else fillHead();
    if (!first && tab !== "live" && tab !== "task") showTab();
  } catch (error) {
    if (key !== selected) return;
    say(error.message);
    if (page === null) $("detail").replaceChildren(backRow(), el("p", { id: "detail-title" }, error.message));
  }
}
const backRow = () => el("div", { class: "row" }, el("button", { type: "button", class: "back", onclick: closeDetail }, "← All jobs"));

function showDetail() {
  const card = page.card;
  pane = el("div", { id: "pane", role: "tabpanel", tabindex: "0", "aria-labelledby": `tab-${tab}` });
  const tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "About this job" },
    ...TABS.filter(([name]) => name !== "diff" || page.has_diff).map(([name, label]) => el("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "pane", "aria-selected": String(name === tab),
      tabindex: name === tab ? "0" : "-1", onclick: () => { tab = name; showTab(); } }, label)));
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = [...tabs.children];
    const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
    next.focus();
    next.click();
  });
  $("detail").replaceChildren(
    backRow(),
    el("h2", { id: "detail-title" }, card.title || card.job_id), el("p", { id: "head" }), el("p", { id: "why" }),
    el("div", { id: "acts", class: "row" }), el("div", { id: "form" }), tabs, pane);
  fillHead();
  showTab();
}

function fillHead() {
  const card = page.card;
  const head = $("head");
  head.className = `mark ${card.need}`;
  const age = span(now() - card.since);
  const parts = [`${SYMBOL[card.need]} ${card.state} ${card.finished === null ? `for ${age}` : `${age} ago`}`, [card.agent, card.agent_version].filter(Boolean).join(" "), `attempt ${card.attempt}`, card.job_id];
  if (card.cost_usd !== null) parts.push(usd(card.cost_usd));
  if (head.textContent !== parts.join(DOT)) head.replaceChildren(...dotted(parts));
  put($("why"), card.reason);
  const acts = [];
  const ended = ENDED.includes(card.status);
  if (rights.has("act")) {
    if (!ended) acts.push(["Cancel", "bad", () => confirmAct("cancel", "Cancel this job and stop its agent?")]);
    if (ended) acts.push(["Retry", "", () => confirmAct("retry", "Run this job again as a new job?")]);
    // A text that is typed into the screen of an agent may answer its question.
    if (ended || (card.status !== "pending" && rights.has("answer"))) acts.push(["Message", "", messageForm]);
    if (["failed", "finished"].includes(card.need)) acts.push(["Mark as seen", "main", () => act("seen")]);
    if (card.need === "snoozed") acts.push(["Wake", "", () => act("wake")]);
    else if (NEEDS.includes(card.need)) acts.push(["Snooze 1 h", "", () => act("snooze")]);
  }
  const wanted = acts.map(([name]) => name).join();
  if ($("acts").dataset.wanted === wanted) return;
  $("acts").dataset.wanted = wanted;
  $("acts").replaceChildren(...acts.map(([name, kind, run]) => el("button", { type: "button", class: kind, onclick: run }, name)));
}

function closeForm() { $("form").replaceChildren(); $("detail").focus({ preventScroll: true }); }
function confirmAct(verb, question) {
  const yes = el("button", { type: "button", class: "main", onclick: () => { closeForm(); act(verb); } }, "Yes");
  $("form").replaceChildren(el("div", { class: "panel", role: "alertdialog", "aria-label": question }, el("p", {}, question),
    el("div", { class: "row" }, yes, el("button", { type: "button", onclick: closeForm }, "No"))));
  yes.focus();
}
function messageForm() {
  const text = el("textarea", { id: "message", rows: "3", maxlength: "20000" });
  const form = el("form", { class: "panel" }, el("label", { for: "message" }, "Message to the agent"), text,
    el("div", { class: "row" }, el("button", { type: "submit", class: "main" }, "Send"),
      el("button", { type: "button", onclick: closeForm }, "Close")));
  form.addEventListener("submit", (event) => { event.preventDefault(); act("message", { text: text.value }, closeForm); });
  $("form").replaceChildren(form);
  text.focus();
}
async function act(verb, body = {}, done = () => {}) {
  const key = selected;
  try { say((await call(api(`/jobs/${key}/${verb}`), body)).done); done(); } catch (error) { say(error.message); }
}

async function showTab() {
  for (const each of document.querySelectorAll(".tabs button")) {
    each.setAttribute("aria-selected", String(each.id === `tab-${tab}`));
    each.tabIndex = each.id === `tab-${tab}` ? 0 : -1;
  }
  pane.setAttribute("aria-labelledby", `tab-${tab}`);
  known = "";
  if (tab === "live") { pane.replaceChildren(el("p", { class: "soft" }, "Loading …")); return showLive(); }
  if (tab === "timeline") return pane.replaceChildren(timelineChart(page.timeline));
  if (tab === "task") return pane.replaceChildren(task());
  const key = selected, name = tab;
  try {
    const found = (await call(api(`/jobs/${key}/${name}`)))[name];
    if (key === selected && tab === name) pane.replaceChildren(...{ history: historyList, explain: facts, result: resultView, diff: (text) => [el("pre", { class: "wide" }, text || "No changes.")] }[name](found));
  } catch (error) { if (key === selected && tab === name) pane.replaceChildren(el("p", {}, error.message)); }
}

async function showLive() {
  const key = selected;
  if (key === null || tab !== "live" || document.hidden) return;
  try {
    const found = await call(api(`/jobs/${key}/view?known=${known}`));
    if (key !== selected || tab !== "live" || found.same) return;
    known = found.hash;
    if (found.kind === "none") { pane.replaceChildren(el("p", { class: "soft" }, found.note)); return; }
    let output = $("output");
    if (!output) {
      output = el("pre", { id: "output", class: found.kind === "screen" ? "wide" : "", tabindex: "0", "aria-label": "What the agent shows" });
      pane.replaceChildren(el("p", { class: "soft", id: "note" }), output);
    }
    const atEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 40;
    put($("note"), (found.kind === "screen" ? "the agent's screen" : "the agent's output") + (found.note ? `; ${found.note}` : ""));
    put(output, found.text);
    if (atEnd) output.scrollTop = output.scrollHeight;
  } catch (error) { if (error.status && key === selected) pane.replaceChildren(el("p", {}, error.message)); }
}
setInterval(showLive, 700);

function timelineChart(line) {
  const box = el("div");
  if (line.from === null || line.from === undefined) return el("p", { class: "soft" }, line.why || "Nothing is known of it here.");
  const width = 640, left = 4, until = Math.max(line.to || line.from, line.from + 1000);
  const x = (ms) => left + (width - 2 * left) * (Math.min(Math.max(ms, line.from), until) - line.from) / (until - line.from);
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} 96`, role: "img", "aria-label": `${line.spans.length} spans in ${span(until - line.from)}` });
  const rows = { queued: 8, attempt: 8, wait: 36 };
  for (const each of line.spans) {
    const from = x(each.from), rect = svg("rect", { class: each.kind, x: from, y: rows[each.kind], width: Math.max(x(each.to || until) - from, 3), height: 22, rx: 4 });
    rect.append(svg("title", {}, each.label));
    chart.append(rect);
  }
  for (const each of line.marks) chart.append(svg("line", { class: "tick", x1: x(each.at), x2: x(each.at), y1: 62, y2: 72 }));
  chart.append(svg("text", { class: "soft", x: left, y: 90 }, clock(line.from)), svg("text", { class: "soft", x: width - left, y: 90, "text-anchor": "end" }, clock(until)));
  const key = (kind, text) => el("span", {}, el("span", { class: `dot ${kind}` }), text);
  const rowsOf = [...line.spans.map((each) => [each.from, each.kind, each.label, span((each.to || until) - each.from)]),
    ...line.marks.map((each) => [each.at, "report", each.label, ""])].sort((a, b) => a[0] - b[0]);
  box.append(chart, el("p", { class: "key" }, key("queued", "queued"), key("attempt", "attempt"), key("wait", "waiting for an answer"), el("span", {}, "| report of the agent")),
    el("table", {}, el("thead", {}, el("tr", {}, ...["At", "What", "For"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, ...rowsOf.slice(-200).map(([at, kind, label, lasted]) => el("tr", {}, el("td", {}, clock(at)), el("td", {}, kind === "wait" ? `waited: ${label}` : label), el("td", {}, lasted))))));
  return box;
}

function historyList(lines) {
  return [el("ol", { class: "events" }, ...lines.slice(-500).reverse().map((line) => {
    const { ts, event, n, payload, ...more } = line;
    const text = payload ? `${payload.event}: ${payload.detail}` : Object.entries(more).filter(([name]) => !name.endsWith("_sha256")).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
    return el("li", {}, el("time", {}, clock(Date.parse(ts))), el("strong", {}, event), " ", text);
  }))];
}
function pairs(entries) {
  return el("dl", { class: "facts" }, ...entries.filter(([, value]) => value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && !value.length))
    .flatMap(([name, value]) => [el("dt", {}, name.replaceAll("_", " ")), el("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value))]));
}
function facts(found) {
  const rows = found.facts.map((each) => el("tr", {}, el("td", {}, each.fact), el("td", {}, typeof each.value === "object" ? JSON.stringify(each.value) : String(each.value)), el("td", {}, each.source || ""), el("td", {}, each.age_sec === null ? "" : span(each.age_sec * 1000))));
  return [pairs((found.ending ? ["ending", "agent", "agent_version", "agent_mode", "model", "note"] : ["state", "cause", "since", "agent", "agent_version", "agent_mode", "model", "rule", "known_by", "note"]).map((name) => [name, found[name]])),
    rows.length ? el("table", {}, el("thead", {}, el("tr", {}, ...["Fact", "Value", "Source", "Age"].map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, ...rows)) : el("p", { class: "soft" }, "No facts are kept."),
    pairs(found.limits.filter((each) => each.sec !== null).map((each) => [each.limit, `${each.sec} s, ${each.clock}`]))];
}
function resultView(found) {
  if (!found) return [el("p", { class: "soft" }, "The job has not ended.")];
  const { message, validation, usage, job_id, title, output, duration_sec, cost_usd, ...more } = found;
  if (duration_sec !== null && duration_sec !== undefined) more.duration = span(duration_sec * 1000);
  if (cost_usd !== null && cost_usd !== undefined) more.cost = usd(cost_usd);
  return [message ? el("pre", {}, message) : el("p", { class: "soft" }, "It left no message."), validation ? el("h3", {}, "Validation") : null,
    validation ? el("pre", {}, validation) : null, pairs(Object.entries(more))].filter(Boolean);
}
function task() {
  const { prompt, prompt_is_cut, ...more } = page.job;
  return el("div", {}, el("pre", { "aria-label": "The prompt" }, prompt), prompt_is_cut ? el("p", { class: "soft" }, "The rest of the prompt is not shown.") : null,
    el("p", { class: "soft" }, page.card.folder), pairs(Object.entries(more)));
}

// -- cost, sign-out, keys ----------------------------------------------------------------------------------------------

function showCost() {
  const most = Math.max(...cost.map((each) => each.usd), 0.01), width = 640, step = width / Math.max(cost.length, 7);
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} 150`, role: "img", "aria-label": "Cost per day in US dollars" });
  cost.forEach((each, index) => {
    const height = 100 * each.usd / most, x = index * step + 4;
    chart.append(svg("rect", { class: "bar", x, y: 124 - height, width: step - 8, height: Math.max(height, 1), rx: 3 }),
      svg("text", { x: x + (step - 8) / 2, y: 118 - height, "text-anchor": "middle" }, usd(each.usd)),
      svg("text", { class: "soft", x: x + (step - 8) / 2, y: 142, "text-anchor": "middle" }, each.day.slice(5)));
  });
  const unknown = cost.reduce((sum, each) => sum + each.unknown, 0);
  $("cost-bars").replaceChildren(cost.length ? chart : el("p", { class: "soft" }, "No agent has reported a cost."),
    unknown ? el("p", { class: "soft" }, `${unknown} attempts have an unknown cost, which is not in the bars.`) : "");
}
$("show-cost").addEventListener("click", () => {
  $("cost").hidden = !$("cost").hidden;
  $("show-cost").setAttribute("aria-expanded", String(!$("cost").hidden));
  if (!$("cost").hidden) showCost();
});
$("sign-out").addEventListener("click", async () => {
  try { await call(api("/logout"), {}); showLogin("You are signed out."); } catch (error) { say(error.message); }
});
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("find").addEventListener("input", showList);
function showAges() {
  for (const [key, card] of cards) { const row = $(`job-${key}`); if (row) put(row.querySelector(".age"), span(now() - card.since)); }
  for (const box of document.querySelectorAll(".card[data-since]")) put(box.querySelector(".part:nth-of-type(3)"), `${span(now() - Number(box.dataset.since))} ago${DOT}`);
  if (page && $("head")) fillHead();
}
setInterval(showAges, 5000);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
  const rows = [...document.querySelectorAll(".card .open, .job")].filter((row) => row.offsetParent);
  const at = rows.findIndex((row) => row === document.activeElement || row.closest(".card")?.contains(document.activeElement));
  const step = { j: 1, k: -1 }[event.key];
  if (step && rows.length) rows[Math.min(Math.max(at + step, 0), rows.length - 1)].focus();
  else if (event.key === "w") {
    const wanting = rows.filter((row) => row.matches(".open") || NEEDS.some((need) => row.firstChild.classList.contains(need)));
    const next = wanting.find((row) => rows.indexOf(row) > at) || wanting[0];
    if (next) next.focus(); else say("No job needs you.");
  }
  else if (event.key === "/") $("find").focus();
  else if (event.key === "Escape" && selected !== null) closeDetail();
  else return;
  event.preventDefault();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && !stream && !$("main").hidden) load(); });
addEventListener("hashchange", begin);
begin();
