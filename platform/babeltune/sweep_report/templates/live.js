"use strict";
const root = document.documentElement;
const events = new EventSource("/events?seen=" + encodeURIComponent(root.dataset.version));
const say = (id, text) => {
  const place = document.getElementById(id);
  if (place && place.textContent !== text) place.textContent = text;
};
const unfolded = () => [...document.querySelectorAll("details[open] > summary")].map((each) => each.id);
const scrolled = () => [...document.querySelectorAll("[tabindex]")].map((each) => [each.id, each.scrollLeft]);
events.addEventListener("stage", (event) => say("live", JSON.parse(event.data)));
events.addEventListener("news", (event) => say("news", JSON.parse(event.data)));
events.addEventListener("changed", async () => {
  const text = await (await fetch("/")).text();
  const next = new DOMParser().parseFromString(text, "text/html");
  const open = unfolded(), sideways = scrolled(), focused = document.activeElement.id, place = [scrollX, scrollY];
  document.title = next.title;
  for (const part of ["header", "main", "footer"])
    document.querySelector(`body > ${part}`).replaceWith(next.querySelector(`body > ${part}`));
  for (const id of open) document.getElementById(id)?.parentElement.setAttribute("open", "");
  for (const [id, left] of sideways) document.getElementById(id)?.scrollTo({ left, behavior: "instant" });
  scrollTo({ left: place[0], top: place[1], behavior: "instant" });
  if (focused && focused !== document.activeElement.id)
    document.getElementById(focused)?.focus({ preventScroll: true });
});
events.addEventListener("frozen", (event) => {
  events.close();
  say("live", JSON.parse(event.data));
  say("news", JSON.parse(event.data));
});
