// The page of `gpt2 serve`: sends a prompt, shows what is written token by token, and what each token's chances were.
// All text goes into the page as text nodes, never as markup.

const ALTERNATIVES = 5;
const MOST_TEXTS = 30;
const TOP_K = [1, 2, 5, 10, 20, 40, 100, 200, 500, 0];
const LENGTHS = [25, 50, 100, 200, 400, 800, 2000];
const REASONS = { stop: "ended by the model", length: "cut at its length" };

const find = (id) => document.getElementById(id);
const prompt = find("prompt"), temperature = find("temperature"), topK = find("top-k"), topP = find("top-p"), length = find("tokens");
const known = new WeakMap(); // A token's element: what is known of it.
let server = { id: null, max_tokens: 2000 };
let isHintNeeded = true; // Until a token was pointed at.
let running = null; // The AbortController of the text being written.

function element(name, content, ...classes) {
  const made = document.createElement(name);
  made.classList.add(...classes);
  made.append(...[content].flat().filter((part) => part !== null && part !== ""));
  return made;
}

// Settings, which stay from visit to visit

const remembered = () => { try { return JSON.parse(localStorage.getItem("gpt2") ?? "{}"); } catch { return {}; } };

function remember() {
  const values = { prompt: prompt.value, temperature: temperature.value, topK: topK.value, topP: topP.value, tokens: length.value, colours: find("colours").checked };
  try { localStorage.setItem("gpt2", JSON.stringify(values)); } catch { /* A private window, or no room: no matter. */ }
}

function recall() {
  const values = remembered();
  if (values.prompt) prompt.value = values.prompt;
  for (const [input, value] of [[temperature, values.temperature], [topK, values.topK], [topP, values.topP], [length, values.tokens]]) {
    if (value !== undefined) input.value = value;
  }
  find("colours").checked = values.colours ?? true;
}

const chosen = () => ({
  temperature: Number(temperature.value),
  top_k: TOP_K[topK.value],
  top_p: Number(topP.value),
  max_tokens: Math.min(LENGTHS[length.value], server.max_tokens),
});

function showSettings() {
  const { temperature: heat, top_k: k, top_p: p, max_tokens: tokens } = chosen();
  find("temperature-shown").value = heat === 0 ? "0, greedy" : heat.toFixed(2);
  find("top-k-shown").value = k === 0 ? "all" : k;
  find("top-p-shown").value = p === 1 ? "all" : p === 0 ? "0, greedy" : p.toFixed(2);
  find("tokens-shown").value = `${tokens.toLocaleString("en")} tokens`;
  topK.setAttribute("aria-valuetext", k === 0 ? "all" : String(k));
  length.setAttribute("aria-valuetext", `${tokens} tokens`);
  document.body.classList.toggle("coloured", find("colours").checked);
  find("legend").hidden = !find("colours").checked || !document.querySelector("article");
}

// The server

function token() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token");
}

async function ask(path, options = {}) {
  const headers = { "Content-Type": "application/json" };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error("The server can't be reached: is it still running?");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) {
    find("key-form").hidden = false;
    find("key").focus();
  }
  const body = await answer.json().catch(() => null);
  throw new Error(body?.error?.message ?? `The server answered ${answer.status}.`);
}

async function meet() {
  const answer = await (await ask("v1/models")).json();
  server = answer.data[0];
  find("key-form").hidden = true;
  find("name").textContent = document.title = server.id;
  const size = server.parameters >= 1e6 ? `${(server.parameters / 1e6).toFixed(server.parameters < 1e7 ? 1 : 0)} million` : server.parameters.toLocaleString("en");
  find("about").textContent = `${size} parameters · sees ${server.max_model_len.toLocaleString("en")} tokens`
    + (server.step ? ` · trained for ${server.step.toLocaleString("en")} steps` : "");
  showSettings();
}

// The events of an answer, as they come.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

// One text

class Text {
  constructor(given, settings) {
    this.given = given;
    this.settings = settings;
    this.written = "";
    this.count = 0;
    this.waiting = []; // Tokens whose character is not complete yet.
    this.place = element("div", given ? element("span", given, "given") : null, "text");
    this.place.tabIndex = 0;
    this.told = element("span", "", "told");
    this.article = element("article", [this.place, element("div", this.told, "status")], "card", "writing");
    find("texts").prepend(this.article);
    while (find("texts").childElementCount > MOST_TEXTS) find("texts").lastElementChild.remove();
  }

  add(choice) {
    const found = choice.logprobs;
    const characters = Array.from(choice.text);
    this.written += choice.text;
    found?.tokens.forEach((name, at) => {
      const from = found.text_offset[at] - found.text_offset[0];
      const to = at + 1 < found.tokens.length ? found.text_offset[at + 1] - found.text_offset[0] : characters.length;
      this.addToken(characters.slice(from, to).join(""), { name, logprob: found.token_logprobs[at], others: found.top_logprobs[at] });
    });
  }

  addToken(text, token) {
    this.count += 1;
    this.waiting.push(token);
    const isEnd = text === "" && token.name === "<|endoftext|>";
    if (text === "" && !isEnd) return;
    const made = element("span", isEnd ? "end of text" : text, "token", `p${rarity(Math.exp(token.logprob))}`);
    if (isEnd) made.classList.add("end");
    if (text.startsWith("\n")) made.classList.add("line-end");
    known.set(made, { text: isEnd ? token.name : text, tokens: this.waiting });
    this.waiting = [];
    this.place.append(made);
  }

  tell(words, isProblem = false) {
    this.told.replaceChildren(element("span", words, isProblem ? "problem" : "plain"));
  }

  end() {
    this.article.classList.remove("writing");
    const buttons = [["Copy", () => this.copy()], ["Continue", () => write(this.given + this.written)], ["Another", () => write(this.given)]];
    for (const [name, act] of buttons) {
      const button = element("button", name);
      button.type = "button";
      button.addEventListener("click", async () => {
        await act();
        if (name === "Copy") { button.textContent = "Copied"; setTimeout(() => { button.textContent = name; }, 1500); }
      });
      this.article.lastElementChild.append(button);
    }
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.given + this.written);
    } catch {
      // Browsers give the clipboard to pages from https or this machine only; a selection can be copied by hand.
      getSelection().selectAllChildren(this.place);
    }
  }
}

const rarity = (probability) => [0.5, 0.2, 0.05, 0.01].filter((limit) => probability < limit).length;

async function write(given) {
  running?.abort();
  hideDetails();
  const control = running = new AbortController();
  const settings = chosen();
  const text = new Text(given, settings);
  const started = performance.now();
  const rate = () => `${text.count.toLocaleString("en")} tokens, ${(text.count / Math.max(0.001, (performance.now() - started) / 1000)).toFixed(text.count < 100 ? 1 : 0)} a second`;
  find("write").hidden = true;
  find("stop").hidden = false;
  showSettings();
  text.tell("waiting for the model");
  const how = `temperature ${settings.temperature}, top-k ${settings.top_k || "all"}, top-p ${settings.top_p === 1 ? "all" : settings.top_p}`;
  try {
    // Of a longer text the model sees the end.
    const body = {
      model: server.id, prompt: given, truncate_prompt_tokens: server.max_model_len, stream: true, logprobs: ALTERNATIVES, ...settings,
    };
    const answer = await ask("v1/completions", { method: "POST", body: JSON.stringify(body), signal: control.signal });
    let reason = null;
    for await (const event of events(answer)) {
      for (const choice of event.choices) {
        text.add(choice);
        reason = choice.finish_reason ?? reason;
      }
      text.tell(rate());
    }
    text.tell(reason ? `${rate()}, ${REASONS[reason]} · ${how}` : `${rate()}, broken off by the server`, reason === null);
  } catch (error) {
    if (error.name === "AbortError") text.tell(`${rate()}, stopped · ${how}`);
    else text.tell(error.message, true);
  }
  text.end();
  find("hint").hidden = !isHintNeeded || text.count === 0;
  if (running === control) {
    running = null;
    find("write").hidden = false;
    find("stop").hidden = true;
  }
}

// What is known of a token

const percent = (probability) => {
  const share = probability * 100;
  if (share >= 99.95) return "100%";
  return share >= 0.1 ? `${share.toFixed(1)}%` : share >= 0.001 ? `${share.toFixed(3)}%` : "<0.001%";
};
const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣");

function row(name, probability, isTaken) {
  const fill = element("i", "");
  fill.style.width = `${(probability * 100).toFixed(2)}%`;
  const parts = [element("code", visible(name)), element("div", fill, "bar"), element("span", percent(probability), "share")];
  return element("div", parts, "row", isTaken ? "taken" : "other");
}

function showDetails(place) {
  document.querySelector(".token.chosen")?.classList.remove("chosen");
  place.classList.add("chosen");
  isHintNeeded = false;
  find("hint").hidden = true;
  const { text, tokens } = known.get(place);
  const token = tokens.at(-1);
  const probability = Math.exp(tokens.reduce((sum, part) => sum + part.logprob, 0));
  const others = Object.entries(token.others).sort((one, other) => other[1] - one[1]);
  if (!others.some(([name]) => name === token.name)) others.push([token.name, token.logprob]);
  const box = find("details");
  box.replaceChildren(
    element("div", [element("code", visible(text)), element("span", percent(probability))], "head"),
    ...others.map(([name, logprob]) => row(name, Math.exp(logprob), name === token.name)),
  );
  if (tokens.length > 1) box.append(element("p", `${tokens.length} tokens make this character; the bars are of the last.`));
  box.hidden = false;
  const at = place.getClientRects()[0] ?? place.getBoundingClientRect();
  // On a phone it lies at the bottom of the screen, or at the top if it would hide the token.
  box.classList.toggle("above-all", at.bottom + box.offsetHeight + 20 > innerHeight);
  const below = at.bottom + box.offsetHeight + 16 < innerHeight || at.top < box.offsetHeight + 16;
  box.style.left = `${Math.max(8, Math.min(at.left - 14, innerWidth - box.offsetWidth - 8)) + scrollX}px`;
  box.style.top = `${(below ? at.bottom + 8 : at.top - box.offsetHeight - 8) + scrollY}px`;
}

function hideDetails() {
  document.querySelector(".token.chosen")?.classList.remove("chosen");
  find("details").hidden = true;
}

function moveChosen(event, step) {
  const place = event.target.closest(".text");
  if (!place) return;
  const tokens = [...place.querySelectorAll(".token")];
  const at = tokens.findIndex((token) => token.classList.contains("chosen"));
  const next = tokens[at < 0 ? (step > 0 ? 0 : tokens.length - 1) : at + step];
  if (!next) return;
  event.preventDefault();
  next.scrollIntoView({ block: "nearest" });
  showDetails(next);
}

find("texts").addEventListener("pointerover", (event) => {
  const place = event.target.closest(".token");
  if (place) showDetails(place);
  else if (event.pointerType === "mouse") hideDetails();
});
find("texts").addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hideDetails(); });
document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".token")) hideDetails(); });
document.addEventListener("focusout", hideDetails);
addEventListener("resize", hideDetails);

// Controls

find("form").addEventListener("submit", (event) => { event.preventDefault(); write(prompt.value); });
find("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); write(prompt.value); }
  if (event.key === "Escape") { if (find("details").hidden) running?.abort(); hideDetails(); }
  if (event.key === "ArrowRight") moveChosen(event, 1);
  if (event.key === "ArrowLeft") moveChosen(event, -1);
});
find("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", find("key").value.trim());
  try {
    await meet();
  } catch (error) {
    find("key-help").textContent = error.message;
  }
});
for (const input of [prompt, temperature, topK, topP, length, find("colours")]) {
  input.addEventListener("input", () => { showSettings(); remember(); });
}
if (/Mac|iPhone|iPad/.test(navigator.platform)) document.querySelector(".keys kbd").textContent = "⌘";

recall();
showSettings();
meet().catch((error) => { find("about").textContent = error.message; });
prompt.focus({ preventScroll: true });
