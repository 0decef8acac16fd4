// The server renders the page; this only swaps the sections that have changed, every two seconds.
"use strict";
(() => {
  const EVERY_MS = 2000, MOST_MS = 30000;
  let last = Date.now(), pause = EVERY_MS;
  const tell = () => {
    const seconds = Math.round((Date.now() - last) / 1000);
    document.getElementById("age").textContent =
      seconds < 6 ? "updated every 2 s" : "not updated for " + seconds + " s: is the server there?";
  };
  const swap = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    for (const section of fresh.querySelectorAll("header time, section[id], dl[id], footer")) {
      const old = section.id ? document.getElementById(section.id)
        : document.querySelector(section.tagName === "TIME" ? "header time" : "footer");
      if (old && old.outerHTML !== section.outerHTML) old.replaceWith(section);
    }
    document.title = fresh.querySelector("main").dataset.title;
  };
  const update = async () => {
    if (!document.hidden) {
      try {
        const answer = await fetch("/?part", {signal: AbortSignal.timeout(5000)});
        if (!answer.ok) throw new Error(answer.status);
        swap(await answer.text());
        last = Date.now();
        pause = EVERY_MS;
      } catch {
        pause = Math.min(pause * 2, MOST_MS);
      }
    }
    setTimeout(update, pause);
  };
  document.addEventListener("visibilitychange", () => { pause = EVERY_MS; });
  setInterval(tell, 1000);
  setTimeout(update, EVERY_MS);
  tell();
})();
