"use strict";
// Marks drawings and tables that go on behind their right edge; the style sheet lets that edge fade.
addEventListener("load", () => {
  for (const box of document.querySelectorAll(".diagram, .md-typeset__scrollwrap")) {
    const mark = () => box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    box.addEventListener("scroll", mark, {passive: true});
    new ResizeObserver(mark).observe(box);
    mark();
  }
});
