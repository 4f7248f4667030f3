// Long tables get a filter: words that a row must have, and a choice for each column of few values.
// A table of variants also gets a choice of operation, DSL and architecture, which are parts of a variant's id.
"use strict";

const LONG = 40;
const FEW = 12;
const ID = /^(\w+?)__(tilelang|cutedsl)_(sm\d+a?)__/;

function textOf(cell) {
  return cell ? cell.textContent.trim() : "";
}

// What can be chosen: a title, and the value that a row has.
function choices(table, rows) {
  const heads = [...table.tHead.rows[0].cells].map(textOf);
  const found = heads.map((title, at) => ({ title, value: (row) => textOf(row.cells[at]) }));
  if (rows.some((row) => ID.test(textOf(row.cells[0])))) {
    const part = (at) => (row) => (textOf(row.cells[0]).match(ID) || [])[at] || "";
    found.unshift({ title: "operation", value: part(1) }, { title: "DSL", value: part(2) }, { title: "arch", value: part(3) });
  }
  return found
    .map((one) => ({ ...one, values: [...new Set(rows.map(one.value))].filter(Boolean).sort() }))
    .filter((one) => one.values.length > 1 && one.values.length <= FEW);
}

function addFilter(table) {
  if (!table.tHead || !table.tBodies[0] || table.tBodies[0].rows.length < LONG || table.dataset.filtered) return;
  table.dataset.filtered = "yes";
  const rows = [...table.tBodies[0].rows];
  const bar = document.createElement("div");
  bar.className = "table-filter";
  const words = document.createElement("input");
  words.type = "search";
  words.placeholder = "words that a row has, e.g. sparse_mla h16 sm90a";
  words.setAttribute("aria-label", "Filter the table by words");
  const count = document.createElement("span");
  const selects = choices(table, rows).map((choice) => {
    const select = document.createElement("select");
    select.setAttribute("aria-label", choice.title);
    select.add(new Option(`${choice.title}: any`, ""));
    choice.values.forEach((value) => select.add(new Option(value, value)));
    return { select, choice };
  });

  function apply() {
    const asked = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const fits = asked.every((word) => text.includes(word))
        && selects.every(({ select, choice }) => !select.value || choice.value(row) === select.value);
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    count.textContent = `${shown} of ${rows.length}`;
  }

  words.addEventListener("input", apply);
  selects.forEach(({ select }) => select.addEventListener("change", apply));
  bar.append(words, ...selects.map(({ select }) => select), count);
  (table.closest(".md-typeset__scrollwrap") || table).before(bar);
  apply();
}

document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".md-typeset table").forEach(addFilter));
