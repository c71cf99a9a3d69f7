"use strict";
(() => {
  const trace = JSON.parse(document.getElementById("trace").textContent);
  const COUNT = 0, PATH = 1, OPERATION = 2, LANE = 3, ATTEMPT = 4, START = 5, END = 6, BEGUN = 7, FIRST = 8, ENDED = 9,
    OUTCOME = 10, BYTES = 11, UNUSED = 12, STATUS = 13, CONNECTION = 14, ERROR = 15, HELD = 16, NUMBER = 17, PROCESS = 18, CALLER = 19;
  const PAGE = 15, EXTRA = 8;
  const rowHeight = () => parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));
  let ROW = rowHeight();
  const find = (id) => document.getElementById(id);
  const make = (name, cls, text) => {
    const element = document.createElement(name);
    if (cls) element.className = cls;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const digits = (value) => value >= 99.95 ? value.toFixed(0) : String(+value.toFixed(value >= 9.995 ? 1 : 2));
  const bytes = (count) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (count >= 999.5 && unit < 4) { count /= 1024; unit++; }
    return (unit ? digits(count) : count) + " " + units[unit];
  };
  const time = (us) => us < 999.5 ? Math.round(us) + " µs" : us < 999500 ? digits(us / 1e3) + " ms" : digits(us / 1e6) + " s";
  const many = (count, noun) => count.toLocaleString("en") + " " + noun + (count === 1 ? "" : "s");
  const ended = (row) => row[ENDED] === null ? trace.end : row[ENDED];

  // --- the texts of bars ---
  const ranged = (row) => row[START] < 0 ? "the last " + bytes(-row[START]) : bytes(row[START]) + (row[END] === null ? " to the end" : " – " + bytes(row[END]));
  const described = (row) => {
    const parts = [];
    if (row[COUNT] > 1) parts.push("requests " + row[NUMBER] + " to " + (row[NUMBER] + row[COUNT] - 1), many(row[COUNT], "request"));
    else parts.push("request " + row[NUMBER]);
    parts.push(trace.operations[row[OPERATION]] + " " + trace.paths[row[PATH]]);
    if (row[START] !== null) parts.push(row[START] < 0 ? "the last " + bytes(-row[START]) : "bytes " + row[START].toLocaleString("en") + " to " + (row[END] === null ? "the end" : row[END].toLocaleString("en")));
    parts.push(trace.lanes[row[LANE]]);
    if (trace.processes[row[PROCESS]]) parts.push("of " + trace.processes[row[PROCESS]]);
    if (trace.callers[row[CALLER]]) parts.push("for " + trace.callers[row[CALLER]]);
    if (row[ATTEMPT] > 1) parts.push("attempt " + row[ATTEMPT] + (row[HELD] ? ", " + time(row[HELD]) + " after the failure before" : ""));
    parts.push("began at " + time(row[BEGUN]));
    if (row[FIRST] !== null) parts.push("first byte after " + time(row[FIRST] - row[BEGUN]));
    parts.push((row[OUTCOME] === 3 ? "has not ended after " : "took ") + time(ended(row) - row[BEGUN]));
    parts.push((row[OUTCOME] === 3 ? "received so far " : "received ") + bytes(row[BYTES]) + (row[UNUSED] ? ", of which " + bytes(row[UNUSED]) + " were not used" : ""));
    if (row[STATUS] !== null) parts.push("status " + row[STATUS]);
    if (row[CONNECTION] !== "") parts.push("connection " + row[CONNECTION]);
    if (row[OUTCOME] === 1) parts.push("failed" + (row[ERROR] === null ? "" : ": " + trace.errors[row[ERROR]]));
    if (row[OUTCOME] === 2) parts.push("cancelled: no read needed it any more");
    return parts.join(", ");
  };
  const waited = (wait) => wait[9]
    ? "from " + time(wait[0]) + " to " + time(wait[1]) + ", " + many(wait[2], "read") + " waited, at most " + wait[9].toLocaleString("en") +
      " at once, " + time(wait[7]) + " together"
    : "a read of " + trace.paths[wait[4]] + " waited " + time(wait[1] - wait[0]) + ", for bytes " + wait[5].toLocaleString("en") +
      " to " + wait[6].toLocaleString("en") + " from " + trace.tiers[wait[3]] + ", from " + time(wait[0]);
  const waitedForMemory = (wait) => "from " + time(wait[0]) + " to " + time(wait[1]) + ", " + many(wait[2], "request") + " waited for memory";

  // --- the window of time that is shown ---
  const view = { from: 0, to: Math.max(1, trace.end) };
  const percent = (us) => 100 * (us - view.from) / (view.to - view.from);
  const said = find("said");
  const say = (text) => {
    const [head, ...rest] = text.split(", ");
    said.replaceChildren(make("strong", "", head), document.createTextNode(rest.length ? ", " + rest.join(", ") : ""));
  };
  const place = (element, from, to) => {
    const left = Math.max(0, percent(from)), right = Math.min(100, percent(to));
    element.style.left = left + "%";
    element.style.width = Math.max(0, right - left) + "%";
    return element;
  };
  const steps = (span) => {
    const raw = span / 7, power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= raw);
  };
  const drawAxis = () => {
    const axis = find("axis"), grid = find("grid");
    axis.replaceChildren(); grid.replaceChildren();
    const step = steps(view.to - view.from);
    for (let at = Math.ceil(view.from / step) * step; at < view.to; at += step) {
      const line = make("i"), text = make("span", "", at < step / 2 ? "0" : time(at));
      line.style.left = text.style.left = percent(at) + "%";
      grid.append(line);
      if (percent(at) < 95) axis.append(text);
    }
  };

  // --- rows of requests: only those in sight are in the document ---
  const list = find("rows"), scroller = list.parentElement;
  let shown = [], active = 0;
  const orders = {
    time: null, slow: (a, b) => (ended(b) - b[BEGUN]) - (ended(a) - a[BEGUN]), unused: (a, b) => b[UNUSED] - a[UNUSED],
    line: (a, b) => a[CALLER] - b[CALLER] || a[BEGUN] - b[BEGUN],
  };
  const filters = {
    all: () => true, demand: (row) => trace.lanes[row[LANE]] === "demand", prefetch: (row) => trace.lanes[row[LANE]] === "prefetch",
    failed: (row) => row[OUTCOME] === 1 || row[ATTEMPT] > 1,
  };
  const choose = () => {
    const choice = find("show").value, process = +choice.split("process-")[1];
    const wanted = filters[choice] || ((row) => row[PROCESS] === process), order = orders[find("order").value];
    const before = shown[active], wasEmpty = !shown.length;
    shown = trace.rows.filter((row) => wanted(row) && ended(row) >= view.from && row[BEGUN] <= view.to);
    if (order) shown.sort(order);
    active = Math.max(0, shown.indexOf(before));
    list.style.height = Math.max(1, shown.length) * ROW + "px";
    find("shown").textContent = shown.length === trace.rows.length ? "" : many(shown.length, "bar") + " of " + trace.rows.length.toLocaleString("en");
    drawRows(); drawAll();
    if (!shown.length) say("No request is shown");
    else if (wasEmpty) say(described(shown[active]));
  };
  const bar = (row) => {
    const draw = make("div", "draw"), first = row[FIRST] === null ? ended(row) : row[FIRST];
    if (row[HELD] && row[COUNT] === 1) draw.append(place(make("i", "held"), row[BEGUN] - row[HELD], row[BEGUN]));
    const hasBody = row[FIRST] !== null && ended(row) > row[FIRST];
    if (first > row[BEGUN] || !hasBody) draw.append(place(make("i", hasBody ? "first before" : "first"), row[BEGUN], first));
    if (hasBody) draw.append(place(make("i", first > row[BEGUN] ? "body" : "body alone"), first, ended(row)));
    const text = make("b", "", ["", "✕ ", "⊘ ", "… "][row[OUTCOME]] + (row[ATTEMPT] > 1 ? "↻" + row[ATTEMPT] + " " : "") + time(ended(row) - row[BEGUN]));
    const end = Math.min(100, percent(ended(row))), begin = percent(row[BEGUN]);
    if (end < 88) text.style.left = end + "%"; else if (begin > 12) text.style.right = 100 - begin + "%"; else text.hidden = true;
    draw.append(text);
    return draw;
  };
  const option = (index) => {
    const row = shown[index];
    const element = make("div", "row " + trace.lanes[row[LANE]] + ["", " failed", " cancelled", " open"][row[OUTCOME]]);
    element.setAttribute("role", "option");
    element.setAttribute("aria-label", described(row));
    element.setAttribute("aria-posinset", index + 1);
    element.setAttribute("aria-setsize", shown.length);
    element.setAttribute("aria-selected", index === active);
    element.tabIndex = index === active ? 0 : -1;
    element.dataset.index = index;
    element.style.top = index * ROW + "px";
    const what = make("div", "what"), range = make("span", "range");
    if (row[COUNT] > 1) range.append(make("span", "", many(row[COUNT], "request")));
    else if (trace.single && row[START] !== null) range.append(make("span", "", ranged(row)));
    else range.append(make("span", "", trace.paths[row[PATH]].split("/").pop() || trace.paths[row[PATH]]),
      make("span", "at", row[START] === null ? "" : row[START] < 0 ? " @ end" : " @ " + bytes(row[START])));
    what.append(make("span", "no", row[NUMBER] + (row[COUNT] > 1 ? "+" : "")),
      make("span", "kind", trace.operations[row[OPERATION]] === "read" ? trace.lanes[row[LANE]] : trace.operations[row[OPERATION]]),
      range, make("span", "size", bytes(row[BYTES])));
    element.append(what, bar(row));
    return element;
  };
  const drawRows = () => {
    const focused = list.contains(document.activeElement);
    const first = Math.max(0, Math.floor(scroller.scrollTop / ROW) - EXTRA);
    const last = Math.min(shown.length, Math.ceil((scroller.scrollTop + scroller.clientHeight) / ROW) + EXTRA);
    const fragment = document.createDocumentFragment();
    if (active < first && active < shown.length) fragment.append(option(active));
    for (let index = first; index < last; index++) fragment.append(option(index));
    if (active >= last && active < shown.length) fragment.append(option(active));
    list.replaceChildren(fragment);
    if (focused) list.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
    drawView();
  };
  const select = (index, focus) => {
    if (!shown.length) return;
    active = Math.max(0, Math.min(shown.length - 1, index));
    const top = active * ROW;
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top + ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + ROW - scroller.clientHeight;
    drawRows();
    if (focus) list.querySelector("[tabindex='0']").focus({ preventScroll: true });
    say(described(shown[active]));
  };
  list.addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1, PageDown: PAGE, PageUp: -PAGE, Home: -shown.length, End: shown.length }[event.key];
    if (move !== undefined) { select(active + move, true); event.preventDefault(); return; }
    if (zoomKey(event.key)) event.preventDefault();
  });
  list.addEventListener("click", (event) => {
    const row = event.target.closest("[role=option]");
    if (row) select(+row.dataset.index, true);
  });
  list.addEventListener("mouseover", (event) => {
    const row = event.target.closest("[role=option]");
    if (row) say(described(shown[+row.dataset.index]));
  });
  list.addEventListener("focusin", () => { if (shown.length) say(described(shown[active])); });
  let pending = 0;
  scroller.addEventListener("scroll", () => { if (!pending) pending = requestAnimationFrame(() => { pending = 0; drawRows(); }); });

  // --- all rows at once, small ---
  const all = find("all"), canvas = all?.querySelector("canvas");
  const drawAll = () => {
    if (!canvas || all.hidden) return;
    const style = getComputedStyle(document.documentElement), scale = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight, pen = canvas.getContext("2d");
    canvas.width = width * scale; canvas.height = height * scale;
    pen.scale(scale, scale);
    const colors = trace.lanes.map((lane) => style.getPropertyValue("--" + lane)), failed = style.getPropertyValue("--failed");
    const thick = Math.max(1, height / shown.length);
    shown.forEach((row, index) => {
      const left = percent(row[BEGUN]) * width / 100, right = percent(ended(row)) * width / 100;
      pen.fillStyle = row[OUTCOME] === 1 ? failed : colors[row[LANE]];
      pen.fillRect(left, index / shown.length * height, Math.max(1.5, right - left), thick);
    });
  };
  const drawView = () => {
    if (!all || all.hidden) return;
    const frame = all.querySelector(".view"), height = canvas.clientHeight, whole = Math.max(1, shown.length * ROW);
    frame.style.top = scroller.scrollTop / whole * height + "px";
    frame.style.height = Math.min(1, scroller.clientHeight / whole) * height + "px";
  };
  canvas?.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    select(Math.floor((event.clientY - box.top) / box.height * shown.length), false);
  });

  // --- reads that waited above, requests that waited for memory below ---
  const makeWaits = (id, waits, describe) => {
    const box = find(id);
    if (!box) return () => {};
    let current = 0;
    const levels = Math.max(1, ...waits.map((wait) => wait[8] + 1));
    const tall = levels > 3 ? 6 : 10, columns = 40;
    box.style.height = (waits.some((wait) => wait[9]) ? columns + 6 : 10 + levels * (tall + 2)) + "px";
    const options = waits.map((wait, index) => {
      const element = make("div", "is-" + trace.tiers[wait[3]] + (wait[9] ? " is-column" : ""));
      element.setAttribute("role", "option");
      element.setAttribute("aria-label", describe(wait));
      element.setAttribute("aria-selected", index === 0);
      element.tabIndex = index === 0 ? 0 : -1;
      const height = wait[9] ? Math.max(3, columns * wait[9] / wait[10]) : tall;
      element.style.height = height + "px";
      element.style.top = (wait[9] ? columns + 6 - height : 5 + wait[8] * (tall + 2)) + "px";
      element.addEventListener("focus", () => say(describe(wait)));
      element.addEventListener("mouseover", () => say(describe(wait)));
      return element;
    });
    box.replaceChildren(...options);
    const go = (index) => {
      options[current].tabIndex = -1; options[current].setAttribute("aria-selected", false);
      current = Math.max(0, Math.min(options.length - 1, index));
      options[current].tabIndex = 0; options[current].setAttribute("aria-selected", true);
      options[current].focus();
    };
    box.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -options.length, End: options.length }[event.key];
      if (move !== undefined) { go(current + move); event.preventDefault(); } else if (zoomKey(event.key)) event.preventDefault();
    });
    return () => options.forEach((element, index) => {
      const wait = waits[index], outside = wait[1] < view.from || wait[0] > view.to;
      element.style.visibility = outside && index !== current ? "hidden" : "";
      place(element, wait[0], wait[1]);
    });
  };
  const drawWaits = makeWaits("waits", trace.waits, waited), drawMemory = makeWaits("memory", trace.memory, waitedForMemory);

  // --- requests in flight, where a window of time is chosen too ---
  const flight = find("flight");
  const drawCurve = (track, bins, highest) => {
    if (!track) return;
    const width = trace.end / bins.length || 1, top = Math.max(1, highest);
    let path = "M0 100";
    bins.forEach((number, index) => {
      const left = Math.max(-1, Math.min(101, percent(index * width))), right = Math.max(-1, Math.min(101, percent((index + 1) * width)));
      if (right > -1 && left < 101) path += "L" + left.toFixed(3) + " " + (100 - 84 * number / top).toFixed(1) + "H" + right.toFixed(3);
    });
    track.querySelector("path").setAttribute("d", path + "V100Z");
  };
  const drawGaps = () => find("gaps")?.replaceChildren(...trace.gaps.filter(([from, to]) => to >= view.from && from <= view.to).map(([from, to]) => place(make("i"), from, to)));
  const highest = Math.max(1, ...trace.ofProcesses.flat());
  const drawProcesses = () => trace.ofProcesses.forEach((bins, number) => drawCurve(find("process-" + number), bins, highest));
  const redraw = () => { drawAxis(); drawGaps(); drawProcesses(); drawWaits(); drawMemory(); drawCurve(flight, trace.flight, trace.flightMax); drawCurve(find("used"), trace.used, trace.usedMax); choose(); };
  const zoom = (factor, middle) => {
    const whole = Math.max(1, trace.end), span = Math.min(whole, Math.max(20, (view.to - view.from) * factor));
    show(Math.max(0, Math.min(whole - span, middle - span / 2)), span);
  };
  const show = (from, span) => { view.from = from; view.to = from + span; redraw(); };
  const middle = () => {
    const row = shown[active];
    return factorFits(row) ? (row[BEGUN] + ended(row)) / 2 : (view.from + view.to) / 2;
  };
  const factorFits = (row) => row && row[BEGUN] >= view.from && ended(row) <= view.to;
  const zoomKey = (key) => {
    const span = view.to - view.from;
    if (key === "+" || key === "=") zoom(0.5, middle());
    else if (key === "-") zoom(2, middle());
    else if (key === "0") show(0, Math.max(1, trace.end));
    else if (key === "ArrowLeft") show(Math.max(0, view.from - span / 4), span);
    else if (key === "ArrowRight") show(Math.min(Math.max(1, trace.end) - span, view.from + span / 4), span);
    else return false;
    return true;
  };
  find("closer").addEventListener("click", () => zoomKey("+"));
  find("further").addEventListener("click", () => zoomKey("-"));
  find("whole").addEventListener("click", () => zoomKey("0"));
  find("show").addEventListener("change", () => { scroller.scrollTop = 0; choose(); });
  find("order").addEventListener("change", () => { scroller.scrollTop = 0; choose(); });
  let pressed = null;
  const at = (event) => {
    const box = flight.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  };
  flight.addEventListener("pointerdown", (event) => { pressed = { from: at(event), mark: make("div", "pick") }; flight.append(pressed.mark); flight.setPointerCapture(event.pointerId); });
  flight.addEventListener("pointermove", (event) => {
    if (!pressed) return;
    const [left, right] = [pressed.from, at(event)].sort((a, b) => a - b);
    pressed.mark.style.left = 100 * left + "%"; pressed.mark.style.right = 100 * (1 - right) + "%";
  });
  flight.addEventListener("pointerup", (event) => {
    const [left, right] = [pressed.from, at(event)].sort((a, b) => a - b), span = view.to - view.from;
    pressed.mark.remove(); pressed = null;
    if (right - left > 0.004) show(view.from + left * span, Math.max(20, (right - left) * span));
  });
  const drawColors = () => { drawAll(); drawView(); };
  window.addEventListener("resize", () => { if (ROW === rowHeight()) drawColors(); else { ROW = rowHeight(); choose(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawColors);
  redraw();
})();
