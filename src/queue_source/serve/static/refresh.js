// Newer numbers every 15 s, without a jump of the page. Without this script the browser loads the page again.
"use strict";
(() => {
  const SECONDS = 15;
  const parts = () => document.querySelectorAll("[data-fresh]");

  async function renew() {
    if (document.hidden) return;
    try {
      const answer = await fetch(location.href, {credentials: "same-origin", headers: {accept: "text/html"}});
      if (!answer.ok || answer.redirected) throw new Error(answer.redirected ? "log in again" : "status " + answer.status);
      const found = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of parts()) {
        const newer = found.getElementById(part.id);
        if (newer) part.replaceChildren(...newer.childNodes);
      }
      document.body.classList.remove("old");
      document.dispatchEvent(new Event("renewed"));
    } catch (error) {
      if (!document.body.classList.contains("old"))
        document.getElementById("state-of")?.append(" It cannot be renewed now: " + error.message + ".");
      document.body.classList.add("old");
    }
  }

  setInterval(renew, SECONDS * 1000);
  document.addEventListener("visibilitychange", renew);
})();
