"use strict";
// Text is only ever set as text: nothing that comes from the document becomes markup.
function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

let components = {};
const named = reference => reference.split("/").pop();

function typeText(schema) {
  if (!schema || Object.keys(schema).length === 0) return "any JSON";
  if (schema.$ref) return named(schema.$ref);
  if (schema.enum) return schema.enum.map(value => JSON.stringify(value)).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.anyOf || schema.oneOf) return (schema.anyOf || schema.oneOf).map(typeText).join(" | ");
  if (schema.type === "array") return typeText(schema.items) + "[]";
  if (schema.type === "object" && schema.additionalProperties) return "{name: " + typeText(schema.additionalProperties) + "}";
  let text = Array.isArray(schema.type) ? schema.type.join(" | ") : schema.type || "any JSON";
  if (schema.format) text += " (" + schema.format + ")";
  if (schema.contentEncoding) text += " (" + schema.contentEncoding + ")";
  if (schema.minimum !== undefined) text += " ≥ " + schema.minimum;
  if (schema.maximum !== undefined) text += " ≤ " + schema.maximum;
  return text;
}

function fieldRow(name, required, schema, note) {
  const fallback = schema && "default" in schema ? "default " + JSON.stringify(schema.default) : required ? "required" : "";
  return make("tr", {}, make("td", {}, make("code", {}, name)), make("td", {}, make("code", {}, typeText(schema))),
    make("td", {"class": "soft"}, fallback), make("td", {}, note || (schema && schema.description) || ""));
}

function references(schema, found = []) {
  if (schema && typeof schema === "object") {
    if (schema.$ref && !found.includes(named(schema.$ref))) found.push(named(schema.$ref));
    Object.values(schema).forEach(value => references(value, found));
  }
  return found;
}

function schemaView(schema) {
  const view = make("div", {}, make("p", {}, make("code", {}, typeText(schema))));
  const names = references(schema);
  for (let index = 0; index < names.length; index++) {
    const component = components[names[index]];
    if (!component) continue;
    references(component, names);
    const rows = Object.entries(component.properties || {}).map(([name, field]) =>
      fieldRow(name, (component.required || []).includes(name), field));
    view.append(make("h4", {}, names[index]), make("p", {"class": "soft"}, component.description || ""), make("table", {}, ...rows));
  }
  return view;
}

function example(schema, depth = 0) {
  if (!schema || depth > 12) return null;
  if ("default" in schema) return schema.default;
  if (schema.$ref) return example(components[named(schema.$ref)], depth + 1);
  if (schema.enum) return schema.enum[0];
  if ("const" in schema) return schema.const;
  if (schema.anyOf || schema.oneOf) return example((schema.anyOf || schema.oneOf)[0], depth + 1);
  if (schema.type === "array") return [example(schema.items, depth + 1)];
  if (schema.type === "object") return Object.fromEntries(Object.entries(schema.properties || {})
    .filter(([name]) => (schema.required || []).includes(name) || depth === 0).map(([name, field]) => [name, example(field, depth + 1)]));
  return {string: "", integer: 0, number: 0, boolean: false}[schema.type] ?? null;
}

function tryView(method, path, operation, body) {
  const inputs = operation.parameters.map(parameter => [parameter, make("input", {"class": "value", placeholder: parameter.name, "aria-label": parameter.name})]);
  const text = body ? make("textarea", {"aria-label": "body"}) : null;
  if (text) text.value = JSON.stringify(example(body), null, 2);
  const result = make("pre", {hidden: ""});
  const button = make("button", {}, "Send");
  button.addEventListener("click", async () => {
    let target = path;
    const query = new URLSearchParams();
    for (const [parameter, input] of inputs) {
      if (parameter.in === "path") target = target.replace("{" + parameter.name + "}", encodeURIComponent(input.value));
      else if (input.value) query.set(parameter.name, input.value);
    }
    if (query.size) target += "?" + query;
    result.hidden = false;
    result.textContent = "…";
    try {
      const answer = await fetch(target, {method: method.toUpperCase(), body: text && text.value.trim() ? text.value : undefined});
      let shown = await answer.text();
      try { shown = JSON.stringify(JSON.parse(shown), null, 2); } catch { /* not JSON */ }
      result.textContent = answer.status + " " + answer.statusText + "\n" + shown;
    } catch (error) { result.textContent = String(error); }
  });
  return make("div", {}, make("h4", {}, "Try it"), ...inputs.map(([, input]) => input), text, button, result);
}

function content(part) {
  return part && part.content ? Object.entries(part.content)[0] : [null, null];
}

function operationView(path, method, operation) {
  const [, sent] = content(operation.requestBody);
  const body = make("div", {});
  const view = make("details", {}, make("summary", {}, make("span", {"class": "method " + method}, method.toUpperCase()),
    make("code", {}, path), make("span", {}, operation.summary), make("span", {"class": "soft right"}, operation["x-level"])), body);
  view.dataset.text = (method + " " + path + " " + operation.summary).toLowerCase();
  view.addEventListener("toggle", () => {
    if (!view.open || body.childNodes.length) return;
    if (operation.parameters.length) body.append(make("h4", {}, "Parameters"), make("table", {}, ...operation.parameters.map(parameter =>
      fieldRow(parameter.name, parameter.required, parameter.schema, parameter.description || (parameter.in === "path" ? "in the path" : "")))));
    if (sent) body.append(make("h4", {}, operation.requestBody.required ? "Body" : "Body, optional"), schemaView(sent.schema));
    for (const [status, response] of Object.entries(operation.responses)) {
      const [media, given] = content(response);
      body.append(make("h4", {}, (status === "default" ? "Otherwise" : "Answer " + status) + ": " + response.description + (media && media !== "application/json" ? " (" + media + ")" : "")));
      if (given && media === "application/json") body.append(schemaView(given.schema));
    }
    body.append(tryView(method, path, operation, sent && sent.schema));
  });
  return view;
}

async function show() {
  const openapi = await (await fetch("/openapi.json")).json();
  components = openapi.components.schemas;
  const nouns = new Map();
  for (const [path, methods] of Object.entries(openapi.paths)) for (const [method, operation] of Object.entries(methods)) {
    if (!nouns.has(operation.tags[0])) nouns.set(operation.tags[0], []);
    nouns.get(operation.tags[0]).push(operationView(path, method, operation));
  }
  const main = document.getElementById("main");
  main.replaceChildren(make("h1", {}, openapi.info.title), make("p", {}, openapi.info.description + " Bodies and answers are JSON; an error is an object with error and code."));
  for (const [noun, views] of nouns) {
    main.append(make("section", {}, make("h2", {id: noun}, noun), ...views));
    document.getElementById("nouns").append(make("a", {href: "#" + encodeURIComponent(noun)}, noun));
  }
  document.getElementById("find").addEventListener("input", event => {
    const wanted = event.target.value.toLowerCase();
    for (const view of document.querySelectorAll("details")) view.hidden = !view.dataset.text.includes(wanted);
    for (const section of document.querySelectorAll("section")) section.hidden = !section.querySelector("details:not([hidden])");
  });
}
show().catch(error => { document.getElementById("main").textContent = "The document cannot be read: " + error; });
