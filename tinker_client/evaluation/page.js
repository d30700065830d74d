"use strict";
// What models wrote is shown with textContent only: it is text, whatever it looks like.

const PAGE = 100; // rows of the list that are made at once
const { models, tasks, ends, episodes } = JSON.parse(document.getElementById("index").textContent);
const byId = (id) => document.getElementById(id);
const filters = ["model", "depth", "end", "task"].map(byId);
let found = [];

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function fillSelect(select, first, entries) {
  select.replaceChildren(...[["", first], ...entries].map(([value, label]) => {
    const option = make("option", label);
    option.value = value;
    return option;
  }));
}

function fillFilters() {
  const depths = [...new Set(tasks.map((task) => task.depth))].sort((a, b) => a - b);
  fillSelect(byId("model"), "all", models.map((name, number) => [number, name]));
  fillSelect(byId("depth"), "all", depths.map((depth) => [depth, depth]));
  fillSelect(byId("end"), "all", ends.map((name, number) => [number, name]));
}

function applyFilters() {
  const [model, depth, end, text] = filters.map((filter) => filter.value);
  found = [...episodes.keys()].filter((number) => {
    const episode = episodes[number];
    const task = tasks[episode.task];
    return (model === "" || episode.model === Number(model)) && (depth === "" || task.depth === Number(depth))
      && (end === "" || episode.end === Number(end)) && task.id.includes(text.trim());
  });
  byId("list").replaceChildren();
  byId("count").textContent = `${found.length} of ${episodes.length} episodes`;
  showMore();
}

function showMore() {
  const list = byId("list");
  list.append(...found.slice(list.children.length, list.children.length + PAGE).map(listRow));
  byId("more").hidden = list.children.length >= found.length;
}

function listRow(number) {
  const episode = episodes[number];
  const task = tasks[episode.task];
  const row = make("tr");
  const open = make("button", models[episode.model]);
  open.type = "button";
  const cells = [task.id, task.depth, episode.episode + 1, ends[episode.end], episode.turns, ...episode.counts];
  row.append(make("td"), ...cells.map((value) => make("td", value)));
  row.firstChild.append(open);
  row.dataset.number = number;
  row.addEventListener("click", () => view([number]));
  return row;
}

// The turns of an episode: base64 of zlib's format of JSON, each unpacked only when it is opened.
async function unpack(number) {
  const packed = atob(byId(`episode-${number}`).textContent);
  const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

async function view(numbers) {
  const columns = await Promise.all(numbers.map(async (number, column) => episodeView(numbers, column, await unpack(number))));
  byId("viewer").replaceChildren(...columns);
  for (const row of byId("list").children) row.classList.toggle("open", numbers.includes(Number(row.dataset.number)));
  history.replaceState(null, "", `#episodes=${numbers.join(",")}`);
  byId("viewer").scrollIntoView();
}

function episodeView(numbers, column, turns) {
  const number = numbers[column];
  const episode = episodes[number];
  const article = make("article", undefined, "episode");
  const header = make("header");
  header.append(
    make("h3", `${models[episode.model]}, episode ${episode.episode + 1}: ${ends[episode.end]} after ${episode.turns} turns`),
    make("div", `${tasks[episode.task].id}, depth ${tasks[episode.task].depth}`, "about"),
    chooser(numbers, column),
  );
  article.append(header, make("pre", tasks[episode.task].opening, "opening"), ...turns.map(turnView));
  if (episode.error) article.append(make("p", `broken: ${episode.error}`, "mistake"));
  return article;
}

// Below the first column: which other episode of the task to put beside it. Below the second: nothing to choose.
function chooser(numbers, column) {
  if (column > 0) return make("span");
  const label = make("label", "beside it: ");
  const select = make("select");
  const number = numbers[0];
  const others = [...episodes.keys()].filter((other) => other !== number && episodes[other].task === episodes[number].task);
  fillSelect(select, "nothing", others.map((other) => [
    other, `${models[episodes[other].model]}, episode ${episodes[other].episode + 1}: ${ends[episodes[other].end]}`,
  ]));
  select.className = "beside";
  select.value = numbers.length > 1 ? String(numbers[1]) : "";
  select.addEventListener("change", () => view(select.value === "" ? [number] : [number, Number(select.value)]));
  label.append(select);
  return label;
}

function turnView(turn, position) {
  const [reply, observation, kind, tokens, cutOff, repeated] = turn;
  const section = make("section", undefined, `turn ${kind}${cutOff ? " cut" : ""}`);
  const mistakes = [
    kind === "failed_craft" && (repeated ? "failed craft, repeated" : "failed craft"),
    kind === "invalid" && "invalid turn",
    cutOff && "reply cut off",
  ].filter(Boolean);
  const about = make("div", `${position + 1}  ${kind.replace("_", " ")}, ${tokens} tokens `, "about");
  about.append(make("span", mistakes.join(", "), "mistake"));
  section.append(about, make("pre", reply, "reply"), make("pre", observation, "observation"));
  return section;
}

fillFilters();
applyFilters();
for (const filter of filters) filter.addEventListener(filter.tagName === "SELECT" ? "change" : "input", applyFilters);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("more").addEventListener("click", showMore);
const linked = /^#episodes=([\d,]+)$/.exec(location.hash);
if (linked) view(linked[1].split(",").map(Number).filter((number) => number in episodes));
